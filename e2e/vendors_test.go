// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// On a node with devices of several vendors each task opens the nodes of its own, and is
// refused at its neighbors'.
func TestTasksOfEveryVendorOpenTheirOwnDevices(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.MachineOfVendors(root))
	managers := []string{"/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"}
	opened := map[string]string{}
	for _, tc := range []struct {
		id, device string
		nodes      []string
	}{
		{"partition-a", "amd/partition", []string{"/dev/dri/card*", "/dev/dri/renderD*", "/dev/kfd"}},
		{"partition-b", "amd/partition/cpx-nps4", []string{"/dev/dri/card*", "/dev/dri/renderD*", "/dev/kfd"}},
		{"flex", "intel/gpu", []string{"/dev/dri/card*", "/dev/dri/renderD*"}},
		{"npu-a", "huawei/npu", append([]string{"/dev/davinci[0-9]"}, managers...)},
		{"npu-b", "huawei/npu/Huawei Ascend 910B3", append([]string{"/dev/davinci[0-9]"}, managers...)},
		{"vnpu", "huawei/vnpu/vir05_1c_16g", append([]string{"/dev/davinci133"}, managers...)},
	} {
		r := report(t, ctx, c, run(t, ctx, c, jobSpec{id: tc.id, devices: "device \"" + tc.device + "\" {}",
			// What the author says of devices is not believed.
			task: "env {\n ROCR_VISIBLE_DEVICES = \"0,1,2\"\n ZE_AFFINITY_MASK = \"0\"\n ASCEND_RT_VISIBLE_DEVICES = \"0,1\"\n ASCEND_VISIBLE_DEVICES = \"0,1\"\n}"}))
		var paths []string
		for _, node := range r.Nodes {
			paths = append(paths, node.Path)
		}
		slices.Sort(paths)
		if !slices.EqualFunc(paths, tc.nodes, func(path, pattern string) bool { ok, _ := filepath.Match(pattern, path); return ok }) {
			t.Errorf("%s has the nodes %v", tc.id, paths)
		}
		own := fmt.Sprint("render nodes ", r.Renders(), ", NPUs ", r.NPUs(), ", vNPUs ", r.VNPUs())
		if len(r.Renders())+len(r.NPUs())+len(r.VNPUs()) != 1 || opened[own] != "" {
			t.Fatalf("%s opens %s, of which others have %v", tc.id, own, opened)
		}
		opened[own] = tc.id
		if open := r.Opens(); len(open) != 0 {
			t.Errorf("%s opens GPUs of NVIDIA: %v", tc.id, open)
		}
		for key := range r.Env {
			if strings.HasPrefix(key, "ROCR_") || strings.HasPrefix(key, "HIP_") || strings.HasPrefix(key, "ZE_") || strings.HasPrefix(key, "ASCEND_") {
				t.Errorf("%s: %s=%s is not for a container that has its own devices only", tc.id, key, r.Env[key])
			}
		}
	}
	r := report(t, ctx, c, run(t, ctx, c, jobSpec{id: "h100", devices: `device "nvidia/gpu" {}`}))
	if len(r.Opens()) != 1 || len(r.Renders())+len(r.NPUs())+len(r.VNPUs()) != 0 {
		t.Errorf("a task with an NVIDIA GPU opens %v, the render nodes %v, and the NPUs %v and %v", r.Opens(), r.Renders(), r.NPUs(), r.VNPUs())
	}
	r = report(t, ctx, c, run(t, ctx, c, jobSpec{id: "none"}))
	if len(r.Opens())+len(r.Renders())+len(r.NPUs())+len(r.VNPUs())+len(r.Nodes) != 0 {
		t.Errorf("a task without a device opens %v, %v, %v and %v, and has %v", r.Opens(), r.Renders(), r.NPUs(), r.VNPUs(), r.Nodes)
	}
}

// Each vendor's example opens one device of that vendor, and none of another's.
func TestExamplesOfEveryVendor(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.MachineOfVendors(root))
	files, err := filepath.Glob(filepath.Join(root, "examples", "vendors", "*.nomad.hcl"))
	if err != nil || len(files) != 4 {
		t.Fatalf("examples are %v, %v", files, err)
	}
	for _, file := range files {
		job := strings.TrimSuffix(filepath.Base(file), ".nomad.hcl")
		if _, err := c.RunFile(ctx, file); err != nil {
			t.Fatal(err)
		}
		alloc, err := c.Running(ctx, job)
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.Report(ctx, alloc, "train")
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]int{"nvidia": len(r.Opens()), "dri": len(r.Renders()), "ascend": len(r.NPUs()), "vnpu": len(r.VNPUs())}
		want := map[string]int{"nvidia": 0, "dri": 0, "ascend": 0, "vnpu": 0}
		want[map[string]string{"nvidia": "nvidia", "amd": "dri", "intel": "dri", "ascend": "ascend"}[job]] = 1
		if !maps.Equal(got, want) {
			t.Errorf("%s opens %v", job, got)
		}
	}
	checkBooking(t, ctx, c)
}
