// SPDX-License-Identifier: MPL-2.0

package testimage

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
)

// BuildGo compiles the main package pkg, such as
// "github.com/nomad-gpu/nomad-gpu/internal/testimage/probe", as a static program
// into dir and returns its path. Go's build cache makes a second call cheap. On a
// machine without Go it is copied from the folder $NOMAD_GPU_PROGRAMS, which BuildGo
// filled elsewhere.
func BuildGo(ctx context.Context, dir, pkg string) (string, error) {
	out := filepath.Join(dir, filepath.Base(pkg))
	if built := os.Getenv("NOMAD_GPU_PROGRAMS"); built != "" {
		program, err := os.ReadFile(filepath.Join(built, filepath.Base(pkg)))
		if err != nil {
			return "", fmt.Errorf("find %s: %w", pkg, err)
		}
		return out, os.WriteFile(out, program, 0o755)
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", pkg, err, output)
	}
	return out, nil
}

// libraryPath finds the absolute paths in what ldd prints: "name => /path (0x…)"
// and, for the loader, "/path (0x…)".
var libraryPath = regexp.MustCompile(`(?m)(/\S+) \(0x`)

// HostPrograms returns the files of programs of this machine, found on PATH,
// and of the libraries that they load. Each program is put into /bin.
func HostPrograms(ctx context.Context, names ...string) (map[string]File, error) {
	files := map[string]File{}
	for _, name := range names {
		program, err := exec.LookPath(name)
		if err != nil {
			return nil, fmt.Errorf("find program: %w", err)
		}
		files["/bin/"+filepath.Base(name)] = File{Source: program}
		// ldd fails for a static program, which needs nothing.
		output, err := exec.CommandContext(ctx, "ldd", program).Output()
		if err != nil && ctx.Err() != nil {
			return nil, fmt.Errorf("list libraries of %s: %w", program, ctx.Err())
		}
		for _, match := range libraryPath.FindAllStringSubmatch(string(output), -1) {
			files[match[1]] = File{Source: match[1]}
		}
	}
	return files, nil
}
