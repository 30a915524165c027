// SPDX-License-Identifier: MPL-2.0

package rooted

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	securejoin "github.com/cyphar/filepath-securejoin"
	"golang.org/x/sys/unix"
)

// Places finds where mounts lie in a container: an image can hold links, and then
// "/data" may be a place in "/proc". The root directory must be one that no task
// can change, as that of a container that has not started.
type Places struct {
	root    string
	covered []cover
}

// cover is a place in the container on which something is mounted.
type cover struct {
	place string
	// source is the directory that is seen there; nil hides everything below the place.
	source *Handle
}

// NewPlaces looks into a container's root directory.
func NewPlaces(root string) *Places { return &Places{root: root} }

// Find returns where an absolute path is, without links, as the container will
// see it. It need not exist.
func (p *Places) Find(path string) (string, error) {
	found, err := securejoin.SecureJoinVFS(p.root, path, p)
	if err != nil {
		return "", fmt.Errorf("look for %q in the image: %w", path, err)
	}
	if found == p.root {
		return "/", nil
	}
	return strings.TrimPrefix(found, p.root), nil
}

// Cover says that something is mounted on a place, and hides what the image has
// below it.
func (p *Places) Cover(place string) { p.Show(place, nil) }

// Show says that a directory is mounted on a place, whose links Find then follows. The
// directory stays open as long as Places is used.
func (p *Places) Show(place string, source *Handle) {
	p.covered = append(p.covered, cover{place, source})
}

// below returns the last mount that a name of the root directory's lies below, and the
// rest of its way.
func (p *Places) below(name string) (c cover, rest string, found bool) {
	place := filepath.Clean(strings.TrimPrefix(name, p.root))
	for _, c := range slices.Backward(p.covered) {
		if place == c.place {
			return cover{}, "", true // a mount point is no link
		}
		if rest, found := strings.CutPrefix(place, c.place+"/"); found {
			return c, rest, true
		}
	}
	return cover{}, "", false
}

// Lstat and Readlink are what securejoin sees.
func (p *Places) Lstat(name string) (fs.FileInfo, error) {
	c, rest, found := p.below(name)
	if !found {
		return os.Lstat(name)
	}
	file, err := c.open(rest)
	if err != nil {
		return nil, &fs.PathError{Op: "lstat", Path: name, Err: err}
	}
	defer file.Close()
	return file.Stat()
}

func (p *Places) Readlink(name string) (string, error) {
	c, rest, found := p.below(name)
	if !found {
		return os.Readlink(name)
	}
	file, err := c.open(rest)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: err}
	}
	defer file.Close()
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(file.Fd()), "", target)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: err}
	}
	return string(target[:n]), nil
}

// open opens what lies in a mount, without following it if it is a link.
func (c cover) open(rest string) (*os.File, error) {
	if c.source == nil || !c.source.IsDir() {
		return nil, syscall.ENOENT
	}
	dir, name := filepath.Split(rest)
	parent, err := c.source.Resolve(filepath.Clean(dir))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	return parent.openat(name, unix.O_PATH, 0)
}
