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
)

// Places finds where mounts lie in a container: an image can hold links, and then
// "/data" may be a place in "/proc". The root directory must be one that no task
// can change, as that of a container that has not started.
type Places struct {
	root    string
	covered []string
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
func (p *Places) Cover(place string) { p.covered = append(p.covered, place) }

func (p *Places) hidden(name string) bool {
	place := filepath.Clean(strings.TrimPrefix(name, p.root))
	return slices.ContainsFunc(p.covered, func(c string) bool { return strings.HasPrefix(place, c+"/") })
}

// Lstat and Readlink are what securejoin sees.
func (p *Places) Lstat(name string) (fs.FileInfo, error) {
	if p.hidden(name) {
		return nil, &fs.PathError{Op: "lstat", Path: name, Err: syscall.ENOENT}
	}
	return os.Lstat(name)
}

func (p *Places) Readlink(name string) (string, error) {
	if p.hidden(name) {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: syscall.ENOENT}
	}
	return os.Readlink(name)
}
