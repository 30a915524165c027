// SPDX-License-Identifier: MPL-2.0

package taskconfig

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"golang.org/x/sys/unix"
)

// Mount is one mount of a container; Source is a host path for a bind.
type Mount struct {
	Type, Source, Target string
	Options              []string
}

// Restrictions are what the mount's options take away, as flags of mount(2).
func (m Mount) Restrictions() uintptr {
	var flags uintptr
	for _, option := range m.Options {
		for _, r := range restrictions {
			switch option {
			case r.taken:
				flags |= r.flag
			case r.given:
				flags &^= r.flag
			}
		}
	}
	return flags
}

// Restricted adds the options of flags of mount(2) that take something away.
func (m Mount) Restricted(flags uintptr) Mount {
	m.Options = slices.Clone(m.Options)
	for _, r := range restrictions {
		if flags&r.flag != 0 {
			m.Options = append(m.Options, r.taken)
		}
	}
	return m
}

var restrictions = []struct {
	taken, given string
	flag         uintptr
}{
	{"ro", "rw", unix.MS_RDONLY},
	{"nosuid", "suid", unix.MS_NOSUID},
	{"nodev", "dev", unix.MS_NODEV},
	{"noexec", "exec", unix.MS_NOEXEC},
}

var (
	mountTypes   = []string{"bind", "volume", "tmpfs"}
	propagations = []string{"private", "rprivate", "slave", "rslave", "shared", "rshared"}
	// plainOptions are the mount options that a task may write for any mount. Options
	// that are missing here would make another mount of it: an overlay's lowerdir, a device.
	plainOptions = []string{
		"ro", "rw", "nosuid", "suid", "nodev", "dev", "noexec", "exec", "noatime", "atime", "relatime", "norelatime", "strictatime", "nostrictatime", "sync", "async",
	}
	bindOptions  = append([]string{"bind", "rbind"}, append(slices.Clone(plainOptions), propagations...)...)
	tmpfsOptions = []string{"size", "mode", "uid", "gid", "nr_inodes", "nr_blocks"}
	// tmpfsValues are theirs. A comma would begin the next option.
	tmpfsValues = regexp.MustCompile(`^[0-9]{1,20}[kKmMgGtTpPeE%]?$`)
)

// Mount translates what the author wrote. A source is returned as it is: only its
// owner can tell where that is.
func (m MountConfig) Mount() (Mount, error) {
	kind := m.Type
	if kind == "" {
		kind = "volume"
	}
	where := fmt.Sprintf("target %q", m.Target)
	switch {
	case !slices.Contains(mountTypes, kind):
		return Mount{}, fmt.Errorf("%s: type %q is not one of %s", where, m.Type, strings.Join(mountTypes, ", "))
	case !cleanTarget(m.Target):
		return Mount{}, fmt.Errorf("%s is not an absolute, clean path below /", where)
	case kind != "tmpfs" && m.Source == "":
		return Mount{}, fmt.Errorf("%s: source is missing", where)
	case kind == "tmpfs" && m.Source != "" && m.Source != "tmpfs":
		return Mount{}, fmt.Errorf("%s: a tmpfs has no source, found %q", where, m.Source)
	case kind == "tmpfs" && m.Propagation != "":
		return Mount{}, fmt.Errorf("%s: propagation is for bind mounts, and a tmpfs has %q; remove it", where, m.Propagation)
	case m.Propagation != "" && !slices.Contains(propagations, m.Propagation):
		return Mount{}, fmt.Errorf("%s: propagation %q is not one of %s", where, m.Propagation, strings.Join(propagations, ", "))
	case m.Size != "" && kind != "tmpfs":
		return Mount{}, fmt.Errorf("%s: size is for type tmpfs", where)
	}
	options, err := m.bindOptions()
	if kind == "tmpfs" {
		options, err = m.tmpfsOptions()
	}
	if err != nil {
		return Mount{}, fmt.Errorf("%s: %w", where, err)
	}
	if kind == "tmpfs" {
		return Mount{Type: "tmpfs", Source: "tmpfs", Target: m.Target, Options: options}, nil
	}
	return Mount{Type: "bind", Source: m.Source, Target: m.Target, Options: options}, nil
}

func (m MountConfig) tmpfsOptions() ([]string, error) {
	for _, option := range m.Options {
		name, value, _ := strings.Cut(option, "=")
		if !slices.Contains(plainOptions, option) && !(tmpfsValues.MatchString(value) && slices.Contains(tmpfsOptions, name)) {
			return nil, fmt.Errorf("option %q is not one of a tmpfs's (%s, %s=)", option, strings.Join(plainOptions, ", "), strings.Join(tmpfsOptions, "=, "))
		}
	}
	options := append([]string{"nosuid", "nodev"}, m.Options...)
	if m.Size != "" {
		size, err := gpu.ParseBytes(m.Size)
		if err != nil {
			return nil, fmt.Errorf("size: %w", err)
		}
		options = append(options, fmt.Sprintf("size=%d", size))
	}
	if m.ReadOnly {
		options = append(options, "ro")
	}
	return options, nil
}

func (m MountConfig) bindOptions() ([]string, error) {
	for _, option := range m.Options {
		if !slices.Contains(bindOptions, option) {
			return nil, fmt.Errorf("option %q is not one of a bind mount's (%s)", option, strings.Join(bindOptions, ", "))
		}
	}
	options := slices.Clone(m.Options)
	if !slices.Contains(options, "bind") && !slices.Contains(options, "rbind") {
		options = append([]string{"rbind"}, options...)
	}
	if m.ReadOnly {
		options = append(options, "ro")
	}
	if m.Propagation != "" {
		options = append(options, m.Propagation)
	} else if !slices.ContainsFunc(options, func(o string) bool { return slices.Contains(propagations, o) }) {
		options = append(options, "rprivate")
	}
	return options, nil
}

// CheckPropagation reports whether the task may have a mount with these options. What
// a mount hands on to the host is the business of privileged tasks alone, such as CSI
// node plugins; and what the host mounts later comes with the host's own options, so
// such a mount is not read-only.
func (c Config) CheckPropagation(options []string) error {
	mode := PropagationOf(options)
	switch {
	case c.Privileged || mode == "":
		return nil
	case mode == "rshared":
		return fmt.Errorf("propagation rshared lets the task mount on the host, which only a privileged task may (write rslave, or remove it)")
	case ReadOnly(options):
		return fmt.Errorf("propagation rslave brings what the host mounts there later, which would not be read-only (remove the propagation, or do without read-only)")
	}
	return nil
}

// ReadOnly reports whether a mount with these options is.
func ReadOnly(options []string) bool {
	readOnly := false
	for _, option := range options {
		readOnly = option == "ro" || readOnly && option != "rw"
	}
	return readOnly
}

// PropagationOf is the stronger of the propagations among a mount's options:
// "rshared" for mounts that are seen on both sides, "rslave" for those of the host
// that the container sees, "" for neither.
func PropagationOf(options []string) string {
	mode := ""
	for _, option := range options {
		switch option {
		case "shared", "rshared":
			return "rshared"
		case "slave", "rslave":
			mode = "rslave"
		}
	}
	return mode
}

// PathAllowed reports whether the operator lets a task mount a host path, which
// the caller has freed of symbolic links.
func (p Policy) PathAllowed(hostPath string) error {
	if !p.VolumesEnabled {
		return fmt.Errorf("host path %q is not allowed on this node: volumes are disabled; use a relative path, which lies in the task directory", hostPath)
	}
	if len(p.AllowPaths) == 0 {
		return nil
	}
	for _, allowed := range p.AllowPaths {
		allowed = path.Clean(allowed)
		if hostPath == allowed || allowed == "/" || strings.HasPrefix(hostPath, allowed+"/") {
			return nil
		}
	}
	return fmt.Errorf("host path %q is not allowed on this node; allowed are %q and what lies below", hostPath, p.AllowPaths)
}
