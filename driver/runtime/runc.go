// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// RuncVersion is what a runc says of itself.
type RuncVersion struct {
	// Path is where it lies, Version its release, such as "1.1.5+ds1", and Build what
	// it was built from, such as "1.1.5+ds1-1+deb12u1" or a commit.
	Path, Version, Build string
}

// Runc asks the runc that containerd runs, which is the first on containerd's PATH.
func (r *Runtime) Runc(ctx context.Context) (RuncVersion, error) {
	path, err := r.runcPath(ctx)
	if err != nil {
		return RuncVersion{}, fmt.Errorf("find containerd's runc: %w", err)
	}
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return RuncVersion{}, fmt.Errorf("ask %s for its version: %w", path, err)
	}
	return versionOf(path, string(out))
}

// versionOf reads what a runc says of itself.
func versionOf(path, said string) (RuncVersion, error) {
	v := RuncVersion{Path: path}
	for line := range strings.Lines(said) {
		if text, found := strings.CutPrefix(line, "runc version "); found {
			v.Version = strings.TrimSpace(text)
		}
		if text, found := strings.CutPrefix(line, "commit: "); found {
			v.Build = strings.TrimSpace(text)
		}
	}
	if v.Version == "" {
		return RuncVersion{}, fmt.Errorf("ask %s for its version: it says none", path)
	}
	return v, nil
}

// runcPath looks for runc where containerd does.
func (r *Runtime) runcPath(ctx context.Context) (string, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", r.config.Socket)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	socket, err := conn.(*net.UnixConn).File()
	if err != nil {
		return "", err
	}
	defer socket.Close()
	peer, err := unix.GetsockoptUcred(int(socket.Fd()), unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return "", err
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", peer.Pid))
	if err != nil {
		return "", err
	}
	path := runcOn(pathIn(environ))
	if path == "" {
		return "", fmt.Errorf("it is not on the PATH of process %d", peer.Pid)
	}
	return path, nil
}

// pathIn is the PATH of a process, by its environment as the kernel tells it.
func pathIn(environ []byte) string {
	for _, entry := range strings.Split(string(environ), "\x00") {
		if dirs, found := strings.CutPrefix(entry, "PATH="); found {
			return dirs
		}
	}
	return ""
}

// runcOn is the first runc of these directories that can be run, or "".
func runcOn(dirs string) string {
	for _, dir := range filepath.SplitList(dirs) {
		path := filepath.Join(dir, "runc")
		if !filepath.IsAbs(path) {
			continue
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}
