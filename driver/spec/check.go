package spec

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/distribution/reference"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Check reports the first thing in c that the driver does not understand or the
// operator does not allow. Nothing has been started by then.
func (c Config) Check(policy Policy) error {
	checks := []func() error{
		c.checkText, c.checkImage, c.checkModes, c.checkHostname, c.checkHosts, c.checkTargets,
		func() error { return c.checkDevices(policy) },
		func() error { return c.checkPrivileges(policy) },
		func() error { return c.checkRuntime(policy) },
		func() error { _, err := c.GPURequest(); return err },
		func() error { _, err := c.limits(); return err },
	}
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// checkText refuses what would reach containerd as broken text: its API, and
// the kernel behind it, take neither bad UTF-8 nor NUL.
func (c Config) checkText() error {
	texts := map[string][]string{
		"image": {c.Image}, "command": {c.Command}, "args": c.Args, "entrypoint": c.Entrypoint, "cwd": {c.Cwd},
		"hostname": {c.Hostname}, "extra_hosts": c.ExtraHosts, "devices": c.Devices, "cdi_devices": c.CDIDevices,
		"labels": flatten(c.LabelMap()), "sysctl": flatten(merged(c.Sysctl)), "ulimit": flatten(merged(c.Ulimit)),
	}
	for _, m := range c.Mounts {
		texts["mounts"] = append(texts["mounts"], m.Source, m.Target)
	}
	for key, values := range texts {
		for _, value := range values {
			if !validText(value) {
				return fmt.Errorf("%s %q is not valid text: write UTF-8 without NUL", key, value)
			}
		}
	}
	return nil
}

// KernelPaths are what the runtime itself mounts and works in while it makes a
// container: with something of a task's in their place, it could be led to files
// of the host.
var KernelPaths = []string{"/proc", "/sys", "/dev"}

// InKernelPath reports whether a place in a container is one of them or lies in
// one.
func InKernelPath(place string) bool {
	return slices.ContainsFunc(KernelPaths, func(k string) bool { return Covers(k, place) })
}

func (c Config) checkTargets() error {
	for _, m := range c.Mounts {
		if err := c.CheckTarget(m.Target); err != nil {
			return fmt.Errorf("mounts: %w", err)
		}
	}
	return nil
}

// CheckTarget reports whether a mount of the author's may lie on target. It
// leaves privileged tasks alone, which may want the host's /dev.
func (c Config) CheckTarget(target string) error {
	if !cleanTarget(target) {
		return fmt.Errorf("target %q is no absolute, clean path below /", target)
	}
	if InKernelPath(target) && target != shmPath && !c.Privileged {
		return fmt.Errorf("target %q is the runtime's, as is all of %s; mount elsewhere", target, strings.Join(KernelPaths, ", "))
	}
	return nil
}

func cleanTarget(target string) bool {
	return path.IsAbs(target) && path.Clean(target) == target && target != "/"
}

// CheckTaskName refuses names that are places in a directory or that would break
// a line. Nomad refuses slashes, NUL and "alloc".
func CheckTaskName(name string) error {
	odd := func(r rune) bool { return !unicode.IsPrint(r) || r == '/' }
	if name == "" || name == "." || name == ".." || name == "alloc" || !utf8.ValidString(name) || strings.ContainsFunc(name, odd) {
		return fmt.Errorf("task name %q is not a name: it is a directory's, or has characters that cannot be printed", name)
	}
	return nil
}

func flatten(m map[string]string) []string {
	var all []string
	for key, value := range m {
		all = append(all, key, value)
	}
	return all
}

func (c Config) checkImage() error {
	if c.Image == "" {
		return fmt.Errorf("image is missing: write a reference such as \"docker.io/library/redis:7\", or the path of a tar in the task directory such as \"local/image.tar\"")
	}
	if c.ImageArchive() != "" {
		return nil
	}
	named, err := reference.ParseDockerRef(c.Image)
	if err != nil {
		return fmt.Errorf("image %q is no reference: %w", c.Image, err)
	}
	if reference.Domain(named) == ArchiveDomain {
		return fmt.Errorf("image %q is another task's archive; name the archive, such as \"local/image.tar\"", c.Image)
	}
	return nil
}

// ArchiveDomain is the registry in the names of images that came from archives. A
// task has such an image only by having the archive.
const ArchiveDomain = "nomad.local"

// archiveSuffixes tell an image file of the task directory from a reference.
var archiveSuffixes = []string{".tar", ".tar.gz", ".tgz"}

// ImageArchive returns the path of the image file that the task names, relative
// to the task directory, or "" when the image is a reference.
func (c Config) ImageArchive() string {
	for _, suffix := range archiveSuffixes {
		if strings.HasSuffix(c.Image, suffix) {
			return c.Image
		}
	}
	return ""
}

func (c Config) checkPrivileges(policy Policy) error {
	host := []string{}
	for key, set := range map[string]bool{
		"privileged": c.Privileged, "pid_mode \"host\"": c.PIDMode == modeHost, "ipc_mode \"host\"": c.IPCMode == modeHost,
	} {
		if set {
			host = append(host, key)
		}
	}
	slices.Sort(host)
	if len(host) > 0 && !policy.AllowPrivileged {
		return fmt.Errorf("%s is not allowed on this node: the operator has not set allow_privileged", host[0])
	}
	if !c.Seccomp && c.SeccompProfile != "" {
		return fmt.Errorf("seccomp_profile %q contradicts seccomp = false", c.SeccompProfile)
	}
	_, err := c.capabilities(policy)
	return err
}

// hostnames are what the kernel and DNS both take.
var hostnames = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?$`)

func (c Config) checkHostname() error {
	if c.Hostname != "" && !hostnames.MatchString(c.Hostname) {
		return fmt.Errorf("hostname %.80q is not 1 to 63 letters, digits, dots and hyphens", c.Hostname)
	}
	return nil
}

// checkDevices lets through what the operator allows; a privileged task has
// every device anyway.
func (c Config) checkDevices(policy Policy) error {
	for _, text := range c.Devices {
		d, err := ParseDevice(text)
		if err != nil {
			return err
		}
		if !c.Privileged && !matchesAny(policy.AllowDevices, d.HostPath) {
			return fmt.Errorf("devices: %q is not allowed on this node; allow_devices is %q", d.HostPath, policy.AllowDevices)
		}
	}
	for _, name := range c.CDIDevices {
		if !matchesAny(policy.AllowCDIDevices, name) {
			return fmt.Errorf("cdi_devices: %q is not allowed on this node; allow_cdi_devices is %q. GPUs are asked for with a device block in resources", name, policy.AllowCDIDevices)
		}
	}
	return nil
}

func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		matched, err := path.Match(pattern, name)
		return err == nil && matched
	})
}

func (c Config) checkRuntime(policy Policy) error {
	if c.Runtime == "" || c.Runtime == policy.DefaultRuntime || slices.Contains(policy.AllowRuntimes, c.Runtime) {
		return nil
	}
	return fmt.Errorf("runtime %q is not allowed on this node; allowed are %q", c.Runtime, append([]string{policy.DefaultRuntime}, policy.AllowRuntimes...))
}

// GPURequest reads the gpu block.
func (c Config) GPURequest() (GPURequest, error) {
	want := GPURequest{ComputeMilli: c.GPU.Compute, ComputeLimitMilli: c.GPU.ComputeLimit}
	if c.GPU.Memory != "" {
		mib, err := gpu.ParseMemory(c.GPU.Memory)
		if err != nil {
			return want, fmt.Errorf("gpu.%w", err)
		}
		want.MemoryMiB = mib
	}
	for key, milli := range map[string]int64{"gpu.compute": c.GPU.Compute, "gpu.compute_limit": c.GPU.ComputeLimit} {
		if milli < 0 || milli > gpu.MilliPerGPU {
			return want, fmt.Errorf("%s %d is not between 1 and %d milli", key, milli, gpu.MilliPerGPU)
		}
	}
	if want.ComputeLimitMilli != 0 && want.ComputeLimitMilli < want.ComputeMilli {
		return want, fmt.Errorf("gpu.compute_limit %d is below gpu.compute %d; write at least %d", want.ComputeLimitMilli, want.ComputeMilli, want.ComputeMilli)
	}
	return want, nil
}
