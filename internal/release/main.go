// SPDX-License-Identifier: MPL-2.0

// Command release makes the files of a release from programs that are built:
// packages for Debian and Red Hat, tarballs, a list of the modules in the programs,
// and checksums. The same programs make the same bytes.
//
//	go run . -version 0.1.0 -date 1767225600 -bin ../../bin/programs/amd64 -arch amd64 -out ../../bin/release/amd64
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// release is the packages to make, and their sources.
type release struct {
	version string    // "0.1.0", or "0.1.0+12.g5fe9d2c81a44"
	date    time.Time // of every file
	arch    string    // as Go and Debian call it: amd64, arm64
	bin     string    // where the programs are
	host    string    // where the same programs for this machine are, which are asked for their help
	root    string    // the repository
	work    string    // where generated files lie meanwhile
	out     string
	only    string // "image" or "deb": nothing else is made
}

func main() {
	var r release
	date := flag.Int64("date", 0, "Unix `time` of every file")
	flag.StringVar(&r.version, "version", "", "the release, such as 0.1.0")
	flag.StringVar(&r.arch, "arch", "amd64", "what the programs are built for")
	flag.StringVar(&r.bin, "bin", "", "the `folder` of the programs")
	flag.StringVar(&r.host, "host", "../../bin", "the `folder` of the same programs for this machine")
	flag.StringVar(&r.root, "root", "../..", "the `folder` of the repository")
	flag.StringVar(&r.out, "out", "", "the `folder` to write to")
	flag.StringVar(&r.only, "only", "", "only make `this`: image is the placement service's, deb are the packages for Debian")
	flag.Parse()
	r.date = time.Unix(*date, 0).UTC()
	run := map[string]func() error{"": r.make, "image": r.image, "deb": r.make}[r.only]
	if run == nil {
		fmt.Fprintf(os.Stderr, "release: only: %s is not valid (image, deb)\n", r.only)
		os.Exit(2)
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// make writes all files of one architecture.
func (r release) make() error {
	if r.version == "" || r.bin == "" || r.out == "" {
		return fmt.Errorf("-version, -bin and -out must be given")
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	var err error
	if r.work, err = os.MkdirTemp("", "release-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.work)
	packages, err := r.packages()
	if err != nil {
		return err
	}
	formats := []string{"deb", "rpm"}
	if r.only == "deb" {
		formats = formats[:1]
	}
	for _, p := range packages {
		for _, format := range formats {
			if err := r.pack(p, format); err != nil {
				return fmt.Errorf("make %s of %s: %w", format, p.name, err)
			}
		}
	}
	if r.only == "deb" {
		return nil
	}
	if err := r.tarball(packages); err != nil {
		return fmt.Errorf("make tarball: %w", err)
	}
	if err := r.image(); err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	if err := r.bill(); err != nil {
		return fmt.Errorf("list what the programs contain: %w", err)
	}
	return r.checksums()
}

// path is where a file of the release goes.
func (r release) path(name string) string { return filepath.Join(r.out, name) }

// title begins the names of files that are of no package.
func (r release) title() string { return fmt.Sprintf("nomad-gpu_%s_linux_%s", r.version, r.arch) }
