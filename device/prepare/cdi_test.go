// SPDX-License-Identifier: MPL-2.0

package prepare

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/nomad-gpu/nomad-gpu/device/fleet"
	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// specOf is a source that knows some devices; what it hands to containers are the
// files of a directory.
type specOf struct {
	nvidia.CDI
	dir   string
	known []string
	count int
}

// nodes are the device nodes that every machine has.
func (s *specOf) CDISpec(kind string, uuids []string) (*specs.Spec, map[string]error, error) {
	s.count++
	if len(s.known) == 0 {
		return nil, nil, errors.New("no driver")
	}
	spec, failed := &specs.Spec{Version: "0.5.0", Kind: kind}, map[string]error{}
	spec.ContainerEdits.DeviceNodes = []*specs.DeviceNode{{Path: "/dev/nvidiactl", HostPath: "/dev/null"}, {Path: "/dev/nvidia-uvm", HostPath: "/dev/zero"}}
	spec.ContainerEdits.Mounts = []*specs.Mount{{HostPath: s.dir + "/libcuda.so.1", ContainerPath: "/libcuda.so.1"}}
	for _, uuid := range uuids {
		if !slices.Contains(s.known, uuid) {
			failed[uuid] = errors.New("it is lost")
			continue
		}
		spec.Devices = append(spec.Devices, specs.Device{Name: uuid})
	}
	return spec, failed, nil
}

func TestOperatorsCDISpecComesFirst(t *testing.T) {
	operator, ours, driver := t.TempDir(), t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(driver, "libcuda.so.1"), "")
	writeFile(t, filepath.Join(operator, "nvidia.yaml"), `
cdiVersion: "0.5.0"
kind: nvidia.com/gpu
containerEdits:
  deviceNodes:
    - path: /dev/nvidiactl
      hostPath: /dev/null
    - path: /dev/nvidia-uvm
      hostPath: /dev/null
devices:
  - name: GPU-1
    containerEdits:
      deviceNodes:
        - path: /dev/null
`)
	writeFile(t, filepath.Join(operator, "broken.yaml"), "kind: [")
	c := &cdiSpecs{vendor: "nvidia", source: &specOf{dir: driver, known: []string{"GPU-1", "GPU-2"}}, operatorDirs: []string{operator}, ourDir: ours}
	all := []string{"GPU-1", "GPU-2", "GPU-3"}
	names := c.resolve(all)
	if n := names["GPU-1"]; n.name != "nvidia.com/gpu=GPU-1" || n.err != nil || len(names) != 1 {
		t.Errorf("got %v", names)
	}
	if err := c.generate(all); err != nil {
		t.Fatal(err)
	}
	names = c.resolve(all)
	if names["GPU-1"].name != "nvidia.com/gpu=GPU-1" || names["GPU-2"].name != "nomad-gpu/nvidia=GPU-2" || names["GPU-2"].err != nil {
		t.Errorf("got %v", names)
	}
	// The one that cannot be described takes nothing from the others.
	if n := names["GPU-3"]; n.name != "" || n.err == nil {
		t.Errorf("GPU-3 is %v", n)
	}
	if _, err := os.Stat(filepath.Join(ours, "nomad-gpu-nvidia.json")); err != nil {
		t.Error(err)
	}
}

func TestOperatorsBrokenCDISpecIsSaidToBe(t *testing.T) {
	operator := t.TempDir()
	writeFile(t, filepath.Join(operator, "nvidia.yaml"), `
cdiVersion: "0.5.0"
kind: nvidia.com/gpu
devices:
  - name: GPU-1
    containerEdits:
      deviceNodes:
        - path: /dev/nvidiactl
          hostPath: /dev/null
`)
	c := &cdiSpecs{vendor: "nvidia", source: &specOf{}, operatorDirs: []string{operator}}
	if n := c.resolve([]string{"GPU-1"})["GPU-1"]; !n.operators || n.err == nil || !strings.Contains(n.err.Error(), "nvidia-uvm") {
		t.Errorf("got %v", n)
	}
}

func TestCDISpecThatCannotBeMadeIsAnError(t *testing.T) {
	c := &cdiSpecs{vendor: "nvidia", source: &specOf{}, ourDir: t.TempDir()}
	if err := c.generate([]string{"GPU-1"}); err == nil {
		t.Error("succeeded")
	}
}

// A spec is made anew at once when it breaks, and after a while when it could not
// be made; meanwhile the devices have a fault that says why.
func TestBrokenCDISpecIsAFaultAndMadeAgain(t *testing.T) {
	driver, ours := t.TempDir(), t.TempDir()
	library := filepath.Join(driver, "libcuda.so.1")
	writeFile(t, library, "")
	synctest.Test(t, func(t *testing.T) {
		p := testPreparer(t, testConfig(t, ""), &fleet.Platform{}, nil)
		source := &specOf{dir: driver, known: []string{testUUID(0)}}
		p.cdi = []*cdiSpecs{{vendor: "nvidia", source: source, ourDir: ours}}
		if err := p.State.WriteDriverCounts(gpu.NewDriverCounts()); err != nil {
			t.Fatal(err)
		}
		look := func() *plan.Unit { return lookForCDI(p) }
		if u := look(); u.CDI != "nomad-gpu/nvidia="+testUUID(0) || len(u.Faults) != 0 || source.count != 1 {
			t.Errorf("at first: %q, %v, made %d times", u.CDI, u.Faults, source.count)
		}
		// The driver was upgraded: its libraries have other names.
		if err := os.Remove(library); err != nil {
			t.Fatal(err)
		}
		u := look()
		if len(u.Faults) != 1 || u.Faults[0].Code != "cdi-not-ready" || !strings.Contains(u.Faults[0].Message, library) || source.count != 2 {
			t.Errorf("with a path that is gone: %v, made %d times", u.Faults, source.count)
		}
		since := u.Faults[0].Since
		if !since.Equal(time.Now()) {
			t.Errorf("it is since %s, and began now", since)
		}
		time.Sleep(retryInterval)
		if u := look(); len(u.Faults) != 1 || !u.Faults[0].Since.Equal(since) || source.count != 3 {
			t.Errorf("a minute later: %v, made %d times", u.Faults, source.count)
		}
		writeFile(t, library, "")
		if u := look(); len(u.Faults) != 0 || source.count != 3 {
			t.Errorf("with the path back: %v, made %d times", u.Faults, source.count)
		}
		// Someone empties the directory.
		if err := os.Remove(filepath.Join(ours, "nomad-gpu-nvidia.json")); err != nil {
			t.Fatal(err)
		}
		if u := look(); len(u.Faults) != 0 || source.count != 4 {
			t.Errorf("with the spec gone: %v, made %d times", u.Faults, source.count)
		}
	})
}

// On a node without the task driver nothing needs CDI: its GPUs are well without.
func TestCDIIsMissedOnlyWhereTheDriverIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := testPreparer(t, testConfig(t, ""), &fleet.Platform{}, nil)
		p.cdi = []*cdiSpecs{{vendor: "nvidia", source: &specOf{}, ourDir: t.TempDir()}}
		look := func() *plan.Unit { return lookForCDI(p) }
		if u := look(); len(u.Faults) != 0 || u.CDI != "" || u.Unsettled {
			t.Errorf("without the driver: %v, %q, unsettled %v", u.Faults, u.CDI, u.Unsettled)
		}
		if err := p.State.WriteDriverCounts(gpu.NewDriverCounts()); err != nil {
			t.Fatal(err)
		}
		if u := look(); len(u.Faults) != 1 || u.Faults[0].Code != "cdi-not-ready" {
			t.Errorf("with the driver: %v", u.Faults)
		}
	})
}

// lookForCDI makes passes until there is nothing more to do, and returns the unit.
func lookForCDI(p *Preparer) *plan.Unit {
	var u *plan.Unit
	for range 3 {
		u = &plan.Unit{UUID: testUUID(0), GPU: testGPU(testUUID(0), 0), Sharing: p.Config.Fallback}
		p.faults.begin()
		p.prepareCDI([]*plan.Unit{u})
		p.faults.end()
		synctest.Wait()
	}
	return u
}
