// SPDX-License-Identifier: MPL-2.0

package taskconfig

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/distribution/reference"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Check reports everything in c that the driver does not understand or the
// operator does not allow, in the order of the reference. Nothing has been started
// by then.
func (c Config) Check(policy Policy) error {
	var texts, m Mistakes
	c.checkText(&texts)
	c.checkImage(&m, policy)
	c.checkHostname(&m)
	c.checkPrivileges(policy, &m)
	c.checkDevices(policy, &m)
	c.checkMounts(&m)
	c.checkLogging(&m)
	c.checkDocker(&m)
	c.checkHosts(&m)
	c.checkModes(&m)
	c.checkRuntime(policy, &m)
	c.checkCeilings(policy, &m)
	c.Limits(&m)
	_, err := c.GPURequest()
	m.AddErr("gpu", err)
	// An option that is not valid text has no other mistake.
	m.all = slices.DeleteFunc(m.all, func(mistake Mistake) bool {
		return slices.ContainsFunc(texts.all, func(text Mistake) bool { return text.Key == optionOf(mistake) })
	})
	m.all = append(m.all, texts.all...)
	return m.ErrIn(c)
}

// checkText refuses what would reach containerd as broken text: its API, and
// the kernel behind it, take neither bad UTF-8 nor NUL.
func (c Config) checkText(m *Mistakes) {
	texts := map[string][]string{
		"image": {c.Image}, "command": {c.Command}, "args": c.Args, "entrypoint": c.Entrypoint, "cwd": {c.Cwd},
		"hostname": {c.Hostname}, "extra_hosts": c.ExtraHosts, "devices": c.Devices, "cdi_devices": c.CDIDevices,
		"labels": flatten(c.LabelMap()), "sysctl": flatten(merged(c.Sysctl)), "ulimit": flatten(merged(c.Ulimit)),
		"volumes": c.Volumes,
	}
	for _, mount := range c.Mounts {
		texts["mounts"] = append(texts["mounts"], mount.Source, mount.Target)
	}
	for _, key := range slices.Sorted(maps.Keys(texts)) {
		if i := slices.IndexFunc(texts[key], func(value string) bool { return !ValidText(value) }); i >= 0 {
			m.Add(key, "%.80q is not valid text (write UTF-8 without NUL)", texts[key][i])
		}
	}
}

// ShmPath is where programs share memory.
const ShmPath = "/dev/shm"

// KernelPaths are what the runtime itself mounts and works in while it makes a
// container: with something of a task's in their place, it could be led to files
// of the host.
var KernelPaths = []string{"/proc", "/sys", "/dev"}

// InKernelPath reports whether a place in a container is one of them or lies in
// one.
func InKernelPath(place string) bool {
	return slices.ContainsFunc(KernelPaths, func(k string) bool { return Covers(k, place) })
}

func (c Config) checkMounts(m *Mistakes) {
	for _, mount := range c.Mounts {
		m.AddErr("mounts", c.checkMount(mount))
	}
	for _, text := range c.Volumes { // they are among the mounts as well
		_, err := ParseVolume(text)
		m.AddErr("volumes", err)
	}
}

func (c Config) checkMount(m MountConfig) error {
	if err := c.CheckTarget(m.Target); err != nil {
		return err
	}
	mount, err := m.Mount()
	if err != nil {
		return err
	}
	if err := c.CheckPropagation(mount.Options); err != nil {
		return fmt.Errorf("target %q: %w", m.Target, err)
	}
	return nil
}

// CheckTarget reports whether a mount of the author's may lie on target. It
// leaves privileged tasks alone, which may want the host's /dev.
func (c Config) CheckTarget(target string) error {
	if !cleanTarget(target) {
		return fmt.Errorf("target %q is not an absolute, clean path below /", target)
	}
	if InKernelPath(target) && target != ShmPath && !c.Privileged {
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
		return fmt.Errorf("%q is not a name: it is a directory's, or has characters that cannot be printed", name)
	}
	return nil
}

func flatten(m map[string]string) []string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		all = append(all, key, m[key])
	}
	return all
}

func (c Config) checkImage(m *Mistakes, policy Policy) {
	named, err := reference.ParseDockerRef(c.Image)
	switch {
	case c.Image == "":
		m.Add("image", "is missing (write a reference such as \"docker.io/library/redis:7\", or the path of a tar in the task directory such as \"local/image.tar\")")
	case c.ImageArchive() != "":
	case err != nil:
		m.Add("image", "%q is not a reference: %v", c.Image, err)
	case reference.Domain(named) == ArchiveDomain:
		m.Add("image", "%q is another task's archive; name the archive, such as \"local/image.tar\"", c.Image)
	}
	_, err = c.PullTimeout(policy)
	m.AddErr("image_pull_timeout", err)
}

// pullTimeout is how long a pull may receive nothing where its author does not say.
const pullTimeout = 5 * time.Minute

// PullTimeout is how long a pull may receive nothing; 0 is for as long as it likes.
func (c Config) PullTimeout(policy Policy) (time.Duration, error) {
	most := policy.MaxPullTimeout
	if c.ImagePullTimeout == "" {
		if most > 0 {
			return min(most, pullTimeout), nil
		}
		return pullTimeout, nil
	}
	idle, err := time.ParseDuration(c.ImagePullTimeout)
	if err != nil || idle < 0 {
		return 0, &Mistakes{[]Mistake{{Key: "image_pull_timeout", Problem: fmt.Sprintf("%q is not a duration (write for example \"5m\")", c.ImagePullTimeout)}}}
	}
	if most > 0 && (idle == 0 || idle > most) {
		return 0, &Mistakes{[]Mistake{{Key: "image_pull_timeout", Problem: fmt.Sprintf("%q is above the %s that this node's operator allows (max_image_pull_timeout; 0 is for as long as it takes)", c.ImagePullTimeout, most)}}}
	}
	return idle, nil
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

func (c Config) checkPrivileges(policy Policy, m *Mistakes) {
	for _, host := range []struct {
		key string
		set bool
	}{
		{"privileged", c.Privileged}, {"pid_mode", c.PIDMode == ModeHost}, {"ipc_mode", c.IPCMode == ModeHost},
		{"cgroupns_mode", c.CgroupNSMode == ModeHost},
	} {
		if host.set && !policy.AllowPrivileged {
			m.Add(host.key, "is not allowed on this node: the operator has not set allow_privileged")
		}
	}
	// A profile of the author's own may allow everything; whether it does cannot be
	// told here.
	for _, loose := range []struct {
		key string
		set bool
	}{
		{"no_new_privileges", !c.NoNewPrivileges}, {"seccomp", !c.Seccomp}, {"seccomp_profile", c.SeccompProfile != ""},
		{"apparmor_profile", c.AppArmor != ""}, {"selinux_label", c.SELinuxLabel != ""},
	} {
		if loose.set && !c.Privileged && !policy.AllowUnconfined {
			m.Add(loose.key, "leaves the node's defaults, which is not allowed on this node: the operator has not set allow_unconfined")
		}
	}
	if !c.Seccomp && c.SeccompProfile != "" {
		m.Add("seccomp_profile", "%q contradicts seccomp = false", c.SeccompProfile)
	}
	_, err := c.Capabilities(policy)
	m.AddErr("cap_add", err)
}

// hostnames are what the kernel and DNS both take.
var hostnames = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?$`)

func (c Config) checkHostname(m *Mistakes) {
	if c.Hostname != "" && !hostnames.MatchString(c.Hostname) {
		m.Add("hostname", "%.80q is not 1 to 63 letters, digits, dots and hyphens", c.Hostname)
	}
}

// checkDevices lets through what the operator allows; a privileged task has
// every device anyway.
func (c Config) checkDevices(policy Policy, m *Mistakes) {
	for _, text := range c.Devices {
		d, err := ParseDevice(text)
		if err == nil && !c.Privileged && !matchesAny(policy.AllowDevices, d.HostPath) {
			m.Add("devices", "%q is not allowed on this node; allow_devices is %q", d.HostPath, policy.AllowDevices)
		}
		m.AddErr("devices", err)
	}
	for _, name := range c.CDIDevices {
		if !matchesAny(policy.AllowCDIDevices, name) {
			m.Add("cdi_devices", "%q is not allowed on this node; allow_cdi_devices is %q. GPUs are asked for with a device block in resources", name, policy.AllowCDIDevices)
		}
	}
}

func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		matched, err := path.Match(pattern, name)
		return err == nil && matched
	})
}

func (c Config) checkRuntime(policy Policy, m *Mistakes) {
	allowed := append([]string{policy.DefaultRuntime}, policy.AllowRuntimes...)
	if c.Runtime != "" && !slices.Contains(allowed, c.Runtime) {
		m.Add("runtime", "%q is not allowed on this node; allowed are %q", c.Runtime, allowed)
	}
	if c.Snapshotter != "" && c.Snapshotter != policy.DefaultSnapshotter && !matchesAny(policy.AllowSnapshotters, c.Snapshotter) {
		m.Add("snapshotter", "%q is not allowed on this node; allow_snapshotters is %q", c.Snapshotter, policy.AllowSnapshotters)
	}
}

// checkCeilings refuses what would take from others what no task has reserved.
func (c Config) checkCeilings(policy Policy, m *Mistakes) {
	if limit := policy.PidsLimit; limit > 0 && (c.PidsLimit > limit || c.PidsLimit < 0) {
		m.Add("pids_limit", "%d is above the %d that this node's operator allows", c.PidsLimit, limit)
	}
	if swap, err := gpu.ParseBytesOrZero(c.MemorySwap); err == nil && swap > policy.MaxSwapBytes && swap <= maxBytes {
		m.Add("memory_swap", "%q is above the %d MiB that this node's operator allows (max_swap)", c.MemorySwap, policy.MaxSwapBytes>>20)
	}
	// A program of such a priority that loops leaves its CPUs to nothing else, the
	// node's daemons included, whatever its shares are.
	if limit, set := merged(c.Ulimit)["rtprio"]; set && !c.Privileged && !policy.allowsCap("sys_nice") {
		m.Add("ulimit", "rtprio = %q takes CPUs from everything else on the node, and needs sys_nice among the operator's allow_caps", limit)
	}
}

// GPURequest reads the gpu block.
func (c Config) GPURequest() (GPURequest, error) {
	var m Mistakes
	want := GPURequest{ComputeMilli: c.GPU.Compute, ComputeLimitMilli: c.GPU.ComputeLimit}
	if c.GPU.Memory != "" {
		var err error
		if want.MemoryMiB, err = gpu.ParseMemory(c.GPU.Memory); err != nil {
			m.Add("gpu.memory", "%s", strings.TrimPrefix(err.Error(), "memory "))
		}
	}
	if c.GPU.MemoryLimit != "" {
		var err error
		if want.MemoryLimitMiB, err = gpu.ParseMemory(c.GPU.MemoryLimit); err != nil {
			m.Add("gpu.memory_limit", "%s", strings.TrimPrefix(err.Error(), "memory "))
		}
	}
	for _, compute := range []struct {
		key   string
		milli int64
	}{{"gpu.compute", c.GPU.Compute}, {"gpu.compute_limit", c.GPU.ComputeLimit}} {
		if compute.milli < 0 || compute.milli > gpu.MilliPerGPU {
			m.Add(compute.key, "%d is not between 1 and %d (thousandths of a GPU)", compute.milli, gpu.MilliPerGPU)
		}
	}
	if c.GPU.OnFault != "" && c.GPU.OnFault != OnFaultRestart && c.GPU.OnFault != OnFaultEvent {
		m.Add("gpu.on_fault", "%q is not valid (%s, %s)", c.GPU.OnFault, OnFaultRestart, OnFaultEvent)
	}
	switch c.GPU.Priority {
	case "", PriorityNormal:
	case PriorityBelowNormal:
		want.BelowNormal = true
	default:
		n, err := strconv.Atoi(c.GPU.Priority)
		if err != nil || n < gpu.MinSeatPriority || n > gpu.MaxSeatPriority {
			m.Add("gpu.priority", "%q is not valid (%s, %s; where tasks step aside for each other also a number from %d to %d)",
				c.GPU.Priority, PriorityNormal, PriorityBelowNormal, gpu.MinSeatPriority, gpu.MaxSeatPriority)
		}
		want.SeatPriority = n
	}
	if want.ComputeLimitMilli != 0 && want.ComputeLimitMilli < want.ComputeMilli {
		m.Add("gpu.compute_limit", "%d is below gpu.compute %d; write at least %d", want.ComputeLimitMilli, want.ComputeMilli, want.ComputeMilli)
	}
	return want, m.Err()
}

// GPURequest is the gpu block of a task: how it wants to use its devices. Zero
// means not set.
type GPURequest struct {
	MemoryMiB         int64
	MemoryLimitMiB    int64
	ComputeMilli      int64
	ComputeLimitMilli int64
	// BelowNormal programs give way to others on their MPS server.
	BelowNormal bool
	// SeatPriority is that of a task with a seat, 0 where a word says it.
	SeatPriority int
}

// Set reports whether the task wrote anything into the block.
func (r GPURequest) Set() bool { return r != GPURequest{} }

// ValidText reports whether containerd's API, and the kernel behind it, take a
// text.
func ValidText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// Covers reports whether a mount on target hides inner.
func Covers(target, inner string) bool {
	return target == inner || strings.HasPrefix(inner, path.Clean(target)+"/")
}

// unconfined is how a task asks for no AppArmor profile.
const unconfined = "unconfined"

// WantsAppArmor reports whether the author names a profile to be held to.
func (c Config) WantsAppArmor() bool { return c.AppArmor != "" && c.AppArmor != unconfined }
