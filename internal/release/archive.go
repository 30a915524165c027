package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
)

// programs are in the tarball and in the list of contents.
var programs = []string{"nomad-device-gpu", "nomad-driver-containerd", "nomad-gpu-doctor", "nomad-gpu-self", "nomad-gpu-scheduler", "gpu-sim"}

// tarball writes the programs for hosts without packages.
func (r release) tarball() error {
	name := fmt.Sprintf("nomad-gpu_%s_linux_%s", r.version, r.arch)
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
	modules := map[string]cyclonedx.Component{}
	for _, program := range programs {
		info, err := buildinfo.ReadFile(filepath.Join(r.bin, program))
		if err != nil {
			return err
		}
		for _, module := range info.Deps {
			if module.Replace != nil && module.Replace.Version == "" {
				continue // it lies in this repository
			}
			if module.Replace != nil {
				module = module.Replace
			}
			url := "pkg:golang/" + module.Path + "@" + module.Version
			modules[url] = cyclonedx.Component{Type: cyclonedx.ComponentTypeLibrary, BOMRef: url, PackageURL: url, Name: module.Path, Version: module.Version}
		}
		url := "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go")
		modules[url] = cyclonedx.Component{Type: cyclonedx.ComponentTypeLibrary, BOMRef: url, PackageURL: url, Name: "std", Version: info.GoVersion}
	}
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
	out, err := os.Create(r.path(fmt.Sprintf("nomad-gpu_%s_linux_%s.cdx.json", r.version, r.arch)))
	if err != nil {
		return err
	}
	if err := cyclonedx.NewBOMEncoder(out, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// checksums writes SHA256SUMS of all files of a folder, as sha256sum reads it.
func checksums(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, e := range entries {
		if e.IsDir() || e.Name() == "SHA256SUMS" {
			continue
		}
		in, err := os.Open(filepath.Join(folder, e.Name()))
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
	return os.WriteFile(filepath.Join(folder, "SHA256SUMS"), []byte(lines.String()), 0o644)
}
