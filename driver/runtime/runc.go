package runtime

import (
	"bytes"
	"context"
	"fmt"
	"io"
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
	v := RuncVersion{Path: path}
	for line := range strings.Lines(string(out)) {
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

// maxEnviron is how much of containerd's environment is read.
const maxEnviron = 256 << 10

// runcPath looks for runc where containerd does.
func (r *Runtime) runcPath(ctx context.Context) (string, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", r.config.Socket)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return "", err
	}
	var peer *unix.Ucred
	var peerErr error
	if err := raw.Control(func(fd uintptr) { peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return "", err
	}
	if peerErr != nil {
		return "", peerErr
	}
	file, err := os.Open(fmt.Sprintf("/proc/%d/environ", peer.Pid))
	if err != nil {
		return "", err
	}
	defer file.Close()
	environ, err := io.ReadAll(io.LimitReader(file, maxEnviron))
	if err != nil {
		return "", err
	}
	for _, entry := range bytes.Split(environ, []byte{0}) {
		dirs, found := strings.CutPrefix(string(entry), "PATH=")
		if !found {
			continue
		}
		for _, dir := range filepath.SplitList(dirs) {
			path := filepath.Join(dir, "runc")
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 && filepath.IsAbs(path) {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("it is not on the PATH of process %d", peer.Pid)
}
