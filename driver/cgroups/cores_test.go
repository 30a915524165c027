// SPDX-License-Identifier: MPL-2.0

package cgroups

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
)

func TestCoresOfATask(t *testing.T) {
	for _, unified := range []bool{false, true} {
		own := func(l *drivers.LinuxResources) *drivers.Resources { return &drivers.Resources{LinuxResources: l} }
		for name, c := range map[string]struct {
			r       *drivers.Resources
			wanted  string
			want    string
			refused string
		}{
			"no resources":           {nil, "0", "0", ""},
			"of no Linux":            {&drivers.Resources{}, "0", "0", ""},
			"reserved":               {own(&drivers.LinuxResources{CpusetCpus: "1,2"}), "", "1,2", ""},
			"reserved and named":     {own(&drivers.LinuxResources{CpusetCpus: "1,2"}), "0", "", `cpuset_cpus "0" contradicts`},
			"no groups":              {own(&drivers.LinuxResources{}), "0", "0", ""},
			"groups elsewhere":       {own(&drivers.LinuxResources{CpusetCgroupPath: "/elsewhere/x"}), "0", "0", ""},
			"groups that are gone":   {own(&drivers.LinuxResources{CpusetCgroupPath: Root + "/no/such/group"}), "0", "0", ""},
			"a name like the root's": {own(&drivers.LinuxResources{CpusetCgroupPath: Root + "-other/x"}), "0", "0", ""},
		} {
			got, err := CPUs(c.r, c.wanted, unified)
			if c.refused != "" {
				must.ErrorContains(t, err, c.refused, must.Sprint(name))
				continue
			}
			must.NoError(t, err, must.Sprint(name))
			must.Eq(t, c.want, got, must.Sprint(name))
		}
	}
	_, err := SharedCPUs("/proc/self/cmdline", false) // a file is no directory
	must.Error(t, err)
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, "cpuset.effective_cpus"), []byte("0-3\n"), 0o600))
	must.NoError(t, os.WriteFile(filepath.Join(dir, "cpuset.cpus.effective"), []byte("4-7\n"), 0o600))
	for unified, want := range map[bool]string{false: "0-3", true: "4-7"} {
		is, err := SharedCPUs(dir, unified)
		must.NoError(t, err)
		must.Eq(t, want, is)
	}
	for path, want := range map[string][2]string{
		Root + "/nomad/share":                {Root + "/nomad/share", Root + "/nomad"},
		Root + "/nomad/../../etc/share":      {"", ""},
		Root:                                 {"", ""},
		Root + "/nomad.slice/share/a.scope/": {Root + "/nomad.slice/share/a.scope", Root + "/nomad.slice/share"},
	} {
		r := &drivers.Resources{LinuxResources: &drivers.LinuxResources{CpusetCgroupPath: path}}
		must.Eq(t, want[0], partitionDir(r, false), must.Sprint(path))
		must.Eq(t, want[1], partitionDir(r, true), must.Sprint(path))
		r.LinuxResources.CpusetCpus = "1"
		must.Eq(t, want[1], partitionDir(r, false), must.Sprint(path))
	}
	must.Eq(t, "", partitionDir(nil, true))
}

func TestControlGroupsLieWhereNomadKeepsSuchTasks(t *testing.T) {
	in := func(path, cores string) *drivers.Resources {
		return &drivers.Resources{LinuxResources: &drivers.LinuxResources{CpusetCgroupPath: path, CpusetCpus: cores}}
	}
	for _, test := range []struct {
		name      string
		resources *drivers.Resources
		unified   bool
		want      string
		follows   string
	}{
		{"v2, shared cores", in("/sys/fs/cgroup/nomad.slice/share.slice/a.web.scope", ""), true, "/nomad.slice/share.slice/web-1.scope", ""},
		{"v2, own cores", in("/sys/fs/cgroup/nomad.slice/reserve.slice/a.web.scope", "2"), true, "/nomad.slice/reserve.slice/web-1.scope", ""},
		{"v2, the client's own cgroup_parent", in("/sys/fs/cgroup/batch/x.slice/share.slice/a.web.scope", ""), true, "/batch/x.slice/share.slice/web-1.scope", ""},
		{"v2, no place given", in("", ""), true, "/nomad-gpu/web-1.scope", ""},
		{"v2, no resources", nil, true, "/nomad-gpu/web-1.scope", ""},
		{"v2, outside of the mount", in("/srv/cgroup/share.slice/a.web.scope", ""), true, "/nomad-gpu/web-1.scope", ""},
		{"v2, out of the mount", in("/sys/fs/cgroup/../../srv/share.slice/a.web.scope", ""), true, "/nomad-gpu/web-1.scope", ""},
		{"v1, shared cores", in("/sys/fs/cgroup/cpuset/nomad/share", ""), false, "/nomad-gpu/web-1", "/sys/fs/cgroup/cpuset/nomad/share"},
		{"v1, own cores", in("/sys/fs/cgroup/cpuset/nomad/reserve/a.web", "2"), false, "/nomad-gpu/web-1", ""},
		{"v1, no place given", in("", ""), false, "/nomad-gpu/web-1", ""},
	} {
		path := Path("nomad-gpu", "web-1", test.resources, test.unified)
		must.Eq(t, test.want, path, must.Sprint(test.name))
		must.Eq(t, test.follows, Follows(&drivers.TaskConfig{Resources: test.resources}, path, test.unified), must.Sprint(test.name))
	}
	// The container of an earlier release, which lies elsewhere, is kept in step by the driver.
	must.Eq(t, "/sys/fs/cgroup/nomad.slice/share.slice", Follows(
		&drivers.TaskConfig{Resources: in("/sys/fs/cgroup/nomad.slice/share.slice/a.web.scope", "")}, "/nomad-gpu/web-1.scope", true))
}

// Where Nomad's own group cannot be read, the task does not start on any.
func TestGroupsOfNomadThatCannotBeRead(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(Root, "*", "cgroup.procs"))
	must.NoError(t, err)
	own := filepath.Join(Root, "cpuset")
	if Unified() {
		files, own = []string{filepath.Join(Root, "cgroup.procs")}, filepath.Join(Root, "any")
	}
	resources := func(group string) *drivers.Resources {
		return &drivers.Resources{LinuxResources: &drivers.LinuxResources{CpusetCgroupPath: group}}
	}
	if len(files) == 0 {
		t.Skip("there are no control groups")
	}
	_, err = CPUs(resources(filepath.Join(files[0], "share", "task")), "", Unified())
	must.ErrorContains(t, err, "read the node's shared cores: ")
	if shared, _ := SharedCPUs(partitionDir(resources(own), Unified()), Unified()); shared != "" {
		_, err = CPUs(resources(own), "many", Unified())
		must.ErrorContains(t, err, "cpuset_cpus: ")
	}
}
