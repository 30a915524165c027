// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// How long a re-cut of MIG instances takes, what NVML says in between, and which processes hold
// a card. The GPU is in MIG mode meanwhile.
func TestARecut(t *testing.T) {
	g := idle(t)
	figure(t, "processes that hold a card: %v", holders())
	was := smi(t, "--query-gpu=mig.mode.current", "-i", g.UUID)
	if len(was) != 1 || was[0][0] != "Disabled" {
		unavailable(t, "the MIG mode of GPU %s is %q", g.UUID, was)
	}
	mode := func(on string) error {
		began := time.Now()
		out, err := exec.Command(driver().Program("nvidia-smi"), "-i", g.UUID, "-mig", on).CombinedOutput()
		figure(t, "nvidia-smi -mig %s takes %s: %.300q, %v", on, time.Since(began).Round(time.Millisecond), out, err)
		return err
	}
	t.Cleanup(func() { _ = mode("0") })
	if mode("1") != nil || smi(t, "--query-gpu=mig.mode.current", "-i", g.UUID)[0][0] != "Enabled" {
		unavailable(t, "GPU %s does not change its MIG mode now, held by %v", g.UUID, holders())
	}
	open := func() *nvidia.Backend { return nvidia.New(driver().Library(), time.Minute) }
	b := open()
	defer b.Close()
	figures := recutsOf(t, g.UUID, b, open)
	// A program in an instance: the others are cut, its own is not.
	at := figures[len(figures)-1]
	c := start(t, at.UUID, mps.Status{}, nil, "hold", "100")
	figure(t, "a program in %s: %s; processes that hold a card: %v", at, c.line(t), holders())
	figure(t, "its instance is removed: %v", b.Recut(g.UUID, []gpu.MIGPlace{at.MIGPlace}, nil))
	_, there, err := b.MIGPlaces(g.UUID)
	figure(t, "then there are %v, %v", there, err)
	figure(t, "NVML says of the program: %s", shown(at.UUID, c.cmd.Process.Pid))
}

// The same on a simulated GPU, whose times say nothing.
func TestARecutOnTheSimulator(t *testing.T) {
	topology, err := sim.ParseTopology("bundle.hcl", []byte("machine \"bundle\" {}\ngpu {\n model = \"H100\"\n mig = [\"3g.40gb\"]\n}"))
	if err != nil {
		t.Fatal(err)
	}
	machine, err := sim.New(topology, sim.Options{Dir: t.TempDir(), BootID: "boot"})
	if err != nil {
		t.Fatal(err)
	}
	open := func() *nvidia.Backend { return nvidia.New(machine, time.Minute) }
	b := open()
	defer b.Close()
	if there := recutsOf(t, topology.UUID(0), b, open); len(there) != 7 {
		t.Errorf("after it there are %v", there)
	}
}

// recutsOf cuts a GPU in MIG mode into its smallest instances, then half of it into one and back
// again, and returns the instances at the end.
func recutsOf(t *testing.T, uuid string, b *nvidia.Backend, open func() *nvidia.Backend) []gpu.MIGInstance {
	t.Helper()
	profiles, there, err := b.MIGPlaces(uuid)
	if err != nil {
		t.Fatal(err)
	}
	figure(t, "profiles: %+v; instances: %v", profiles, there)
	small := slices.MinFunc(profiles, func(a, b gpu.MIGProfile) int { return 100*(a.Size-b.Size) - (a.Most - b.Most) })
	half := slices.IndexFunc(profiles, func(p gpu.MIGProfile) bool {
		return p.Most == 2 && slices.Contains(p.Starts, 0) && p.Size >= 2*small.Size
	})
	if half < 0 {
		unavailable(t, "the GPU has no profile for a half")
	}
	var removed, left []gpu.MIGPlace
	for _, start := range small.Starts {
		at := gpu.MIGPlace{Profile: small.Name, Start: start}
		if start < profiles[half].Size {
			removed = append(removed, at)
		}
		left = append(left, at)
	}
	var old []gpu.MIGPlace
	for _, i := range there {
		old = append(old, i.MIGPlace)
	}
	one := []gpu.MIGPlace{{Profile: profiles[half].Name, Start: 0}}
	for _, step := range []struct {
		what        string
		remove, add []gpu.MIGPlace
	}{
		{"all small", old, left}, {"half of them become one", removed, one}, {"and back", one, removed},
		{"again", removed, one}, {"and back again", one, removed},
	} {
		watching, watched := make(chan struct{}), make(chan []string)
		go watch(uuid, open(), watching, watched)
		began := time.Now()
		err := b.Recut(uuid, step.remove, step.add)
		took := time.Since(began)
		close(watching)
		figure(t, "%s: %s, %v; NVML meanwhile: %s", step.what, took.Round(time.Millisecond), err, strings.Join(<-watched, "; "))
	}
	if _, there, err = b.MIGPlaces(uuid); err != nil {
		t.Fatal(err)
	}
	return there
}

// watch writes down what NVML says of a GPU's instances, each answer once.
func watch(uuid string, b *nvidia.Backend, until chan struct{}, watched chan []string) {
	defer b.Close()
	var said []string
	for began, last := time.Now(), ""; ; {
		_, there, err := b.MIGPlaces(uuid)
		now := fmt.Sprintf("%d instances", len(there))
		if err != nil {
			now = err.Error()
		}
		if now != last {
			said = append(said, fmt.Sprintf("%s after %s", now, time.Since(began).Round(time.Millisecond)))
			last = now
		}
		select {
		case <-until:
			watched <- said
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// holders are the processes that have a device of NVIDIA open, by name.
func holders() map[string]int {
	all := map[string]int{}
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	seen := map[string]bool{}
	for _, link := range links {
		process := filepath.Dir(filepath.Dir(link))
		target, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(target, "/dev/nvidia") || seen[process] {
			continue
		}
		seen[process] = true
		name, _ := os.ReadFile(filepath.Join(process, "comm"))
		all[strings.TrimSpace(string(name))]++
	}
	return all
}
