// SPDX-License-Identifier: MPL-2.0

package main

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // the format
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // the format
)

// pkg is a package: its content and its dependencies.
type pkg struct {
	name, summary       string
	license             string
	contents            files.Contents
	depends, recommends map[string][]string // by format
	suggests            map[string][]string
	scripts             nfpm.Scripts
}

//go:embed owner
var owner string

// maintainer is who the packages are from.
var maintainer = owned("MAINTAINER")

// owned is a setting of the file owner, which the shell reads too.
func owned(name string) string {
	_, value, _ := strings.Cut(owner, "\n"+name+"='")
	value, _, _ = strings.Cut(value, "'")
	return value
}

// The programs of each package.
var (
	ofPlugins   = []string{"nomad-device-gpu", "nomad-driver-containerd", "nomad-gpu-doctor", "nomad-gpu-self"}
	ofScheduler = []string{"nomad-gpu-scheduler", "gpu-sim"}
)

// packages are the plugins, for Nomad's clients, and the placement service.
func (r release) packages() ([]pkg, error) {
	packages := []pkg{
		{
			name: "nomad-gpu-plugins", license: "MPL-2.0 AND BUSL-1.1",
			summary: "GPU sharing for HashiCorp Nomad: device plugin and containerd task driver\n" +
				"Offers GPUs whole, in slices, in turns and as MIG instances, and runs tasks\nwith exactly the share that Nomad gave them.",
			contents: files.Contents{
				r.program("nomad-device-gpu", "/opt/nomad/plugins"), r.program("nomad-driver-containerd", "/opt/nomad/plugins"),
				link("/usr/bin/nomad-device-gpu", "/opt/nomad/plugins/nomad-device-gpu"),
				link("/usr/bin/nomad-driver-containerd", "/opt/nomad/plugins/nomad-driver-containerd"),
				r.program("nomad-gpu-doctor", "/usr/bin"), r.program("nomad-gpu-self", "/usr/bin"),
				r.file("nomad-gpu.hcl", "/usr/share/doc/nomad-gpu-plugins/nomad-gpu.hcl"),
				r.fileOf("docs/alerts/nodes.rules.yml", "/usr/share/nomad-gpu-plugins/alerts/nodes.rules.yml"),
				r.fileOf("docs/grafana/nodes.json", "/usr/share/nomad-gpu-plugins/grafana/nodes.json"),
			},
			depends:    map[string][]string{"deb": {"libc6 (>= 2.34)", "containerd | containerd.io"}, "rpm": {"glibc >= 2.34", "(containerd or containerd.io)"}},
			recommends: map[string][]string{"deb": {"nomad", "containernetworking-plugins", "iptables"}, "rpm": {"nomad", "containernetworking-plugins", "iptables"}},
			// Not recommended: with NVIDIA's own installer of the driver, Debian's package would replace it.
			suggests: map[string][]string{"deb": {"nvidia-cuda-mps"}, "rpm": {"/usr/bin/nvidia-cuda-mps-control"}},
			scripts:  nfpm.Scripts{PostInstall: r.source("plugins.postinstall"), PostRemove: r.source("plugins.postremove")},
		},
		{
			name: "nomad-gpu-scheduler", license: "MPL-2.0",
			summary: "GPU placement service for HashiCorp Nomad\n" +
				"Chooses nodes and GPUs, keeps team quotas, and makes room for what matters more,\nbeside Nomad and never instead of it.",
			contents: files.Contents{
				r.program("nomad-gpu-scheduler", "/usr/bin"), r.program("gpu-sim", "/usr/bin"),
				r.file("nomad-gpu-scheduler.service", "/usr/lib/systemd/system/nomad-gpu-scheduler.service"),
				r.config("scheduler.hcl", "/etc/nomad-gpu/scheduler.hcl", 0o644),
				r.config("scheduler.env", "/etc/nomad-gpu/scheduler.env", 0o600),
				r.file("credentials.conf", "/usr/share/doc/nomad-gpu-scheduler/credentials.conf"),
				r.fileOf("docs/alerts/service.rules.yml", "/usr/share/nomad-gpu-scheduler/alerts/service.rules.yml"),
				r.fileOf("docs/grafana/service.json", "/usr/share/nomad-gpu-scheduler/grafana/service.json"),
			},
			scripts: nfpm.Scripts{PostInstall: r.source("scheduler.postinstall"), PreRemove: r.source("scheduler.preremove"), PostRemove: r.source("scheduler.postremove")},
		},
	}
	for n, more := range []struct{ programs, examples []string }{
		{ofPlugins, []string{"examples/*.nomad.hcl", "examples/*/*.nomad.hcl"}},
		{ofScheduler, []string{"examples/service/*.hcl"}},
	} {
		p := &packages[n]
		documents, err := r.documents(p.name, more.programs...)
		if err != nil {
			return nil, err
		}
		p.contents = append(p.contents, documents...)
		for _, pattern := range more.examples {
			paths, err := filepath.Glob(filepath.Join(r.root, pattern))
			if err != nil || len(paths) == 0 {
				return nil, fmt.Errorf("no example is at %s", pattern)
			}
			for _, path := range paths {
				path, err := filepath.Rel(r.root, path)
				if err != nil {
					return nil, err
				}
				p.contents = append(p.contents, r.fileOf(path, "/usr/share/doc/"+p.name+"/"+path))
			}
		}
	}
	return packages, nil
}

// source is a file that exists for packages only: a unit, a configuration, a script.
func (r release) source(name string) string {
	return filepath.Join(r.root, "internal/release/files", name)
}

// fileOf is a file of the repository.
func (r release) fileOf(path, destination string) *files.Content {
	return &files.Content{Source: filepath.Join(r.root, path), Destination: destination, FileInfo: r.info(0o644)}
}

func (r release) program(name, folder string) *files.Content {
	return &files.Content{Source: filepath.Join(r.bin, name), Destination: folder + "/" + name, FileInfo: r.info(0o755)}
}

func (r release) file(name, destination string) *files.Content {
	return &files.Content{Source: r.source(name), Destination: destination, FileInfo: r.info(0o644)}
}

// config is a file that is the operator's once it is installed.
func (r release) config(name, destination string, mode os.FileMode) *files.Content {
	return &files.Content{Source: r.source(name), Destination: destination, Type: files.TypeConfigNoReplace, FileInfo: r.info(mode)}
}

func (r release) info(mode os.FileMode) *files.ContentFileInfo {
	return &files.ContentFileInfo{Owner: "root", Group: "root", Mode: mode, MTime: r.date}
}

func link(from, to string) *files.Content {
	return &files.Content{Source: to, Destination: from, Type: files.TypeSymlink}
}

// pack writes one package in one format.
func (r release) pack(p pkg, format string) error {
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	changes, err := r.changelog()
	if err != nil {
		return err
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: p.name, Arch: r.arch, Platform: "linux", Version: r.version, MTime: r.date,
		Section: "admin", Priority: "optional", Maintainer: maintainer, Changelog: changes,
		Description: p.summary, Homepage: "https://github.com/nomad-gpu/nomad-gpu", License: p.license,
		Overridables: nfpm.Overridables{
			Contents: p.contents, Depends: p.depends[format], Recommends: p.recommends[format], Suggests: p.suggests[format], Scripts: p.scripts,
			RPM: nfpm.RPM{Compression: "gzip", BuildHost: "localhost"},
		},
	})
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return err
	}
	out, err := os.Create(r.path(packager.ConventionalFileName(info)))
	if err != nil {
		return err
	}
	if err := packager.Package(info, out); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}
