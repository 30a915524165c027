// SPDX-License-Identifier: MPL-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device"
	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/inventory"
	driverconfig "github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/internal/command"
	"github.com/nomad-gpu/nomad-gpu/internal/version"
)

const bundleHelp = `Packs what a bug report needs into one file: what check says, versions, the
inventory, the plugins' configuration, state files and leases, the logs of the
plugins and of the MPS daemons, what Nomad says of this node and of the
allocations with GPUs on it, and, where the token allows it, the placement
service's decisions.

Nothing of it is a job's own: environments, templates, arguments and metadata are
left out. What looks like a secret is removed from the rest, with every value that
stands in a token, password or secret of the configuration or of the environment.
Look at it before you send it all the same: names of jobs and images are in it.`

func runBundle(args []string, stdout, stderr io.Writer) int {
	fs := command.NewFlags(name, "bundle", bundleHelp, stderr)
	config := fs.String("config", "/etc/nomad.d", "configuration of Nomad's agent: a `file` or folder")
	out := fs.String("out", "", "the `file` to write; by default nomad-gpu-support-<host>-<time>.tar.gz here")
	since := fs.Duration("since", 24*time.Hour, "how far back logs go")
	if code, done := command.ParseFlags(fs, args, stdout); done {
		return code
	}
	hostname, err := os.Hostname()
	if err != nil {
		hostname = "node"
	}
	now := time.Now().UTC()
	if *out == "" {
		*out = fmt.Sprintf("nomad-gpu-support-%s-%s.tar.gz", hostname, now.Format("20060102-150405"))
	}
	b := &bundle{at: now, scrubber: newScrubber(driverconfig.Secrets(*config)...)}
	b.collect(context.Background(), *config, *since, thisHost())
	if err := b.write(*out); err != nil {
		fmt.Fprintln(stderr, err)
		return command.ExitError
	}
	fmt.Fprintf(stdout, "%s has %d files.\n", *out, len(b.files))
	for _, problem := range b.missing {
		fmt.Fprintln(stdout, "Not in it: "+problem)
	}
	return command.ExitOK
}

// bundle is the packed content, all of it scrubbed.
type bundle struct {
	at       time.Time
	scrubber scrubber
	files    []bundled
	missing  []string
}

type bundled struct {
	name string
	text []byte
}

func (b *bundle) add(name, text string) {
	b.files = append(b.files, bundled{name, []byte(b.scrubber.scrub(text))})
}

// addJSON adds a value, or why there is none.
func (b *bundle) addJSON(name string, value any, err error) {
	if err != nil {
		b.lacks(name, err)
		return
	}
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		b.lacks(name, err)
		return
	}
	b.add(name, string(text)+"\n")
}

func (b *bundle) lacks(name string, err error) {
	b.missing = append(b.missing, b.scrubber.scrub(fmt.Sprintf("%s: %v", name, err)))
}

func (b *bundle) collect(ctx context.Context, agent string, since time.Duration, h host) {
	report := examine(ctx, agent, h)
	var text bytes.Buffer
	if err := report.Write(&text); err != nil {
		b.lacks("doctor.txt", err)
	}
	b.add("doctor.txt", text.String())
	b.addJSON("doctor.json", report, nil)
	b.versions(ctx, h)
	inventory, err := inventory.Take(agent)
	b.addJSON("inventory.json", inventory, err)
	keys, err := config.JSON(agent)
	b.addJSON("config/"+device.Name+".json", json.RawMessage(keys), err)
	keys, err = driverconfig.JSON(agent)
	b.addJSON("config/"+driverconfig.PluginName+".json", json.RawMessage(keys), err)
	paths, err := config.StateFiles(agent)
	if err != nil {
		b.lacks("state", err)
	}
	for _, path := range paths {
		b.tree("state", path)
	}
	b.logs(ctx, since, h)
	b.nomad(ctx)
}

func (b *bundle) versions(ctx context.Context, h host) {
	var text strings.Builder
	fmt.Fprintln(&text, version.Line(name))
	for _, line := range [][]string{{"uname", "-a"}, {"cat", "/etc/os-release"}, {"nomad", "version"}, {"containerd", "--version"}, {"runc", "--version"},
		{"docker", "--version"}, {"nvidia-smi"}, {"systemctl", "--version"}} {
		out, err := h.run(ctx, line[0], line[1:]...)
		if err != nil {
			out = err.Error()
		}
		fmt.Fprintf(&text, "\n$ %s\n%s\n", strings.Join(line, " "), out)
	}
	b.add("versions.txt", text.String())
}

// maxFile is how much of a file is taken: its end, where a log says what happened.
const maxFile = 1 << 20

// tree adds the regular files of a folder, or one file, under its own path.
func (b *bundle) tree(folder, path string) {
	err := filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := tail(name)
		if err != nil {
			b.lacks(name, err)
			return nil
		}
		b.add(folder+name, text)
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		b.lacks(path, err)
	}
}

// tail reads the end of a file that may be written to meanwhile.
func tail(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	if _, err := file.Seek(max(0, info.Size()-maxFile), io.SeekStart); err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(file, maxFile))
	return string(text), err
}

// logs adds what the plugins said: their own lines, and those that Nomad logs for them.
func (b *bundle) logs(ctx context.Context, since time.Duration, h host) {
	const file = "logs/plugins.log"
	out, err := h.run(ctx, "journalctl", "--no-pager", "--quiet", "--output=short-iso-precise", fmt.Sprintf("--since=-%ds", int(since.Seconds())),
		"_SYSTEMD_UNIT=nomad.service", "+", "SYSLOG_IDENTIFIER="+device.Name, "+", "SYSLOG_IDENTIFIER="+driverconfig.PluginName)
	if err != nil {
		b.lacks(file, err)
		return
	}
	var ours strings.Builder
	for line := range strings.Lines(out) {
		if strings.Contains(line, device.Name) || strings.Contains(line, driverconfig.PluginName) {
			ours.WriteString(line)
		}
	}
	text := ours.String()
	b.add(file, text[max(0, len(text)-maxFile):])
}

// write packs the files, readable by its owner alone, in the place of nothing.
func (b *bundle) write(path string) (err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	defer func() {
		if err = errors.Join(err, file.Close()); err != nil {
			_ = os.Remove(path)
		}
	}()
	zip := gzip.NewWriter(file)
	archive := tar.NewWriter(zip)
	folder := strings.TrimSuffix(filepath.Base(path), ".tar.gz")
	for _, f := range b.files {
		if err := archive.WriteHeader(&tar.Header{Name: filepath.Join(folder, f.name), Mode: 0o600, Size: int64(len(f.text)), ModTime: b.at}); err != nil {
			return fmt.Errorf("write bundle: %w", err)
		}
		if _, err := archive.Write(f.text); err != nil {
			return fmt.Errorf("write bundle: %w", err)
		}
	}
	return errors.Join(archive.Close(), zip.Close())
}
