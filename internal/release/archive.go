// SPDX-License-Identifier: MPL-2.0

package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
)

// programs are in the tarball and in the list of contents.
var programs = slices.Concat(ofPlugins, ofScheduler)

// tarball writes the programs, and the files of all packages below share, for hosts
// without packages.
func (r release) tarball(packages []pkg) error {
	name := r.title()
	out, err := os.Create(r.path(name + ".tar.gz"))
	if err != nil {
		return err
	}
	defer out.Close()
	zip, err := gzip.NewWriterLevel(out, gzip.BestCompression)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(zip)
	for _, program := range programs {
		if err := r.add(archive, filepath.Join(r.bin, program), name+"/"+program, 0o755); err != nil {
			return err
		}
	}
	for _, file := range []string{"nomad-gpu.hcl", "nomad-gpu-scheduler.service", "scheduler.hcl", "scheduler.env"} {
		if err := r.add(archive, r.source(file), name+"/"+file, 0o644); err != nil {
			return err
		}
	}
	shared := map[string]string{} // sources of files by path
	for _, p := range packages {
		for _, content := range p.contents {
			if path, ok := strings.CutPrefix(content.Destination, "/usr/share/"); ok {
				shared[path] = content.Source
			}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(shared)) {
		if err := r.add(archive, shared[path], name+"/share/"+path, 0o644); err != nil {
			return err
		}
	}
	for _, closer := range []io.Closer{archive, zip, out} {
		if err := closer.Close(); err != nil {
			return err
		}
	}
	return nil
}

func (r release) add(archive *tar.Writer, path, name string, mode int64) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := archive.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: info.Size(), ModTime: r.date, Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err = io.Copy(archive, in)
	return err
}

// bill writes the software bill of materials: the modules that Go has noted in
// the programs.
func (r release) bill() error {
	built, toolchain, err := r.modulesOf(programs)
	if err != nil {
		return err
	}
	modules := map[string]cyclonedx.Component{}
	for _, module := range built {
		url := "pkg:golang/" + module.Path + "@" + module.Version
		modules[url] = cyclonedx.Component{Type: cyclonedx.ComponentTypeLibrary, BOMRef: url, PackageURL: url, Name: module.Path, Version: module.Version}
	}
	url := "pkg:golang/std@" + strings.TrimPrefix(toolchain, "go")
	modules[url] = cyclonedx.Component{Type: cyclonedx.ComponentTypeLibrary, BOMRef: url, PackageURL: url, Name: "std", Version: toolchain}
	var components []cyclonedx.Component
	for _, module := range modules {
		components = append(components, module)
	}
	slices.SortFunc(components, func(a, b cyclonedx.Component) int { return strings.Compare(a.BOMRef, b.BOMRef) })
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{
		Timestamp: r.date.Format("2006-01-02T15:04:05Z"),
		Component: &cyclonedx.Component{Type: cyclonedx.ComponentTypeApplication, BOMRef: "nomad-gpu", Name: "nomad-gpu", Version: r.version},
	}
	bom.Components = &components
	out, err := os.Create(r.path(r.title() + ".cdx.json"))
	if err != nil {
		return err
	}
	if err := cyclonedx.NewBOMEncoder(out, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// checksums writes the SHA-256 sums of all files of the release, as sha256sum reads them.
func (r release) checksums() error {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	name := r.title() + ".SHA256SUMS"
	var lines strings.Builder
	for _, e := range entries {
		if e.IsDir() || e.Name() == name {
			continue
		}
		in, err := os.Open(r.path(e.Name()))
		if err != nil {
			return err
		}
		sum := sha256.New()
		_, err = io.Copy(sum, in)
		in.Close()
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%x  %s\n", sum.Sum(nil), e.Name())
	}
	return os.WriteFile(r.path(name), []byte(lines.String()), 0o644)
}
