// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// A share is described in one line, each of its GPUs with what the task has of it.
func TestWordsOfAShare(t *testing.T) {
	for want, holdings := range map[string][]gpu.Holding{
		"":                            nil,
		"GPU " + gpuA + ", all of it": {{UUID: gpuA}},
		"GPU " + gpuA:                 {{UUID: gpuA, Slices: []int{0}}},
		"GPU " + gpuA + ", all of it; GPU " + gpuB + ", all of it":                                            {{UUID: gpuA}, {UUID: gpuB}},
		"GPU " + gpuA + ", all of it, compute 1, at most 1":                                                   {{UUID: gpuA, Slices: []int{0}, Share: gpu.Share{GuaranteeMilli: 1000, LimitMilli: 1000}}},
		"GPU " + gpuA + ", 1M memory":                                                                         {{UUID: gpuA, Share: gpu.Share{MemoryMiB: 1}}},
		"GPU " + gpuA + ", 2G memory and up to 1M while others leave it":                                      {{UUID: gpuA, Share: gpu.Share{MemoryMiB: 2048, MemoryLimitMiB: 1}}},
		"GPU " + gpuA + ", 2G memory, compute 0, at most 0.001":                                               {{UUID: gpuA, Share: gpu.Share{MemoryMiB: 2048, LimitMilli: 1}}},
		"GPU " + gpuA + ", 2G memory, 3 chunks of multiprocessors of its own for a guarantee of 0.25":         {{UUID: gpuA, Partition: &gpu.Partition{Chunks: 3}, Share: gpu.Share{MemoryMiB: 2048, GuaranteeMilli: 250, LimitMilli: 500}}},
		"GPU " + gpuA + ", 2G memory, compute 0.25, at most 0.5; GPU " + gpuB + ", compute 0.5, at most 0.75": {{UUID: gpuA, Share: gpu.Share{MemoryMiB: 2048, GuaranteeMilli: 250, LimitMilli: 500}}, {UUID: gpuB, Slices: []int{0}, Share: gpu.Share{GuaranteeMilli: 500, LimitMilli: 750}}},
	} {
		must.Eq(t, want, describeShare(spec.Share{Holdings: holdings}))
	}
}

// What of a new share holds for programs that start later is told by its variables.
func TestWordsOfALaterShare(t *testing.T) {
	was := gpu.Holding{UUID: gpuA, Slices: []int{0}, Share: gpu.Share{MemoryMiB: 1024, GuaranteeMilli: 100, LimitMilli: 200}}
	now := was
	now.GuaranteeMilli = 150
	must.Eq(t, "; it holds from now on", later(now, was, gpu.SharingMPS))
	now.LimitMilli, now.MemoryMiB = 500, 2048
	env, before := spec.LaterEnv(now, gpu.SharingMPS), spec.LaterEnv(was, gpu.SharingMPS)
	var changed []string
	for key, value := range env {
		if before[key] != value {
			changed = append(changed, key+"="+value)
		}
	}
	slices.Sort(changed)
	must.Greater(t, 1, len(changed))
	must.Eq(t, "; the guarantee holds from now on, and programs that run keep their limits: those that are started with these variables have the new ones: "+strings.Join(changed, " "), later(now, was, gpu.SharingMPS))
}

// Messages about a runc are complete: safe releases, and the remedy.
func TestWordsOfARunc(t *testing.T) {
	const older = " is older than 1.2.8, 1.3.3 and 1.4.0, which fix ways out of a container (CVE-2025-31133, CVE-2025-52565, CVE-2025-52881"
	const leak = "; before 1.1.12 also CVE-2024-21626"
	for version, want := range map[string]string{
		"0.1.13":           "runc 0.1.13" + older + leak + "); install a newer one",
		"0.9.1":            "runc 0.9.1" + older + leak + "); install a newer one",
		"1.0.3":            "runc 1.0.3" + older + leak + "); install a newer one",
		"1.1.11":           "runc 1.1.11" + older + leak + "); install a newer one",
		"1.1.12":           "runc 1.1.12" + older + "); install a newer one",
		"1.2.1":            "runc 1.2.1" + older + "); install a newer one",
		"1.3.3-rc.3":       "runc 1.3.3-rc.3" + older + "); install a newer one",
		"1.4.0-rc.2":       "runc 1.4.0-rc.2" + older + "); install a newer one",
		"1.1.12~1":         "runc 1.1.12~1" + older + "); the distribution may have brought the fixes into it: look for 1.1.12~1 in its security tracker",
		"devel":            `runc "devel" is not a version that is known here`,
		"1.4.0":            "",
		"1.4.1":            "",
		"1.4.0-rc.3":       "",
		"1.4.0-rc.4":       "",
		"1.2.9-rc.1":       "",
		"2.0.0-rc.1":       "",
		"1.5.0":            "",
		"1.4.0-rc.1+build": "runc 1.4.0-rc.1+build" + older + "); the distribution may have brought the fixes into it: look for 1.4.0-rc.1+build in its security tracker",
	} {
		_, why := judgeRunc(runtime.RuncVersion{Version: version})
		must.Eq(t, want, why)
	}
	for build, want := range map[string]runcSafety{"4:1.1.12-1.el9": runcUnknown, "1.1.12-1.fc40": runcUnknown, "1.1.12-0ubuntu2": runcUnknown, "1.1.12": runcUnsafe} {
		safe, _ := judgeRunc(runtime.RuncVersion{Version: "1.1.12", Build: build})
		must.Eq(t, want, safe, must.Sprint(build))
	}
}

// What would write a second line or word into a task's network files is refused, wherever
// among the others it stands.
func TestNamesThatAreNotOneWord(t *testing.T) {
	must.NoError(t, checkNames(&drivers.TaskConfig{}))
	must.NoError(t, checkNames(&drivers.TaskConfig{DNS: &drivers.DNSConfig{Servers: []string{"10.0.0.1"}}, NetworkIsolation: &drivers.NetworkIsolationSpec{}}))
	for _, list := range [][]string{{"a\nb", "c", "d"}, {"c", "a\nb", "d"}, {"c", "d", "a\nb"}} {
		for key, dns := range map[string]*drivers.DNSConfig{"servers": {Servers: list}, "searches": {Searches: list}, "options": {Options: list}} {
			for range 3 { // the keys are looked at in any order
				must.ErrorContains(t, checkNames(&drivers.TaskConfig{DNS: dns}), `dns: `+key+`: "a\nb" has characters that cannot be printed`)
			}
		}
	}
	group := func(name, address string) error {
		return checkNames(&drivers.TaskConfig{NetworkIsolation: &drivers.NetworkIsolationSpec{HostsConfig: &drivers.HostsConfig{Hostname: name, Address: address}}})
	}
	must.NoError(t, group("", ""))
	must.NoError(t, group("name", "10.0.0.1"))
	must.ErrorContains(t, group("two words", "10.0.0.1"), `network: hostname "two words" is not one word`)
	must.ErrorContains(t, group("name", "10.0.0.1 x"), `network: hostname "10.0.0.1 x" is not one word`)
	must.Error(t, group("two words", ""))
	must.Error(t, group("", "10.0.0.1 x"))
}

// A task's name for itself, and the files in which it finds it.
func TestNamesOfATask(t *testing.T) {
	host, err := os.Hostname()
	must.NoError(t, err)
	group := &drivers.NetworkIsolationSpec{HostsConfig: &drivers.HostsConfig{Hostname: "group"}}
	for _, row := range []struct {
		cfg    drivers.TaskConfig
		config taskconfig.Config
		want   string
	}{
		{drivers.TaskConfig{Name: "web", AllocID: "0123456789ab", NetworkIsolation: group}, taskconfig.Config{Hostname: "own"}, "own"},
		{drivers.TaskConfig{Name: "web", AllocID: "0123456789ab", NetworkIsolation: group}, taskconfig.Config{NetworkMode: "host"}, "group"},
		{drivers.TaskConfig{Name: "web", AllocID: "0123456789ab", NetworkIsolation: &drivers.NetworkIsolationSpec{}}, taskconfig.Config{}, "01234567"},
		{drivers.TaskConfig{Name: "web", AllocID: "0123456789ab", NetworkIsolation: &drivers.NetworkIsolationSpec{HostsConfig: &drivers.HostsConfig{}}}, taskconfig.Config{}, "01234567"},
		{drivers.TaskConfig{Name: "web", AllocID: "0123456789ab"}, taskconfig.Config{NetworkMode: "host"}, host},
		{drivers.TaskConfig{Name: "web", AllocID: "0123456789ab"}, taskconfig.Config{}, "01234567"},
		{drivers.TaskConfig{Name: "web", AllocID: "0123456789a"}, taskconfig.Config{}, "web"},
	} {
		must.Eq(t, row.want, hostnameOf(&row.cfg, row.config))
	}

	p := &startPlan{cfg: &drivers.TaskConfig{Name: "web"}}
	file := func() string {
		t.Helper()
		content, err := p.hostsFile()
		must.NoError(t, err)
		return content
	}
	must.Eq(t, localHosts+"127.0.0.1 web\n", file())
	p.record.Network = &drivers.DriverNetwork{IP: "10.1.0.1"}
	p.config.ExtraHosts = []string{"db:10.0.0.7", "cache:10.0.0.8"}
	must.Eq(t, localHosts+"10.1.0.1 web\n10.0.0.7 db\n10.0.0.8 cache\n", file())
	p.cfg.NetworkIsolation = &drivers.NetworkIsolationSpec{HostsConfig: &drivers.HostsConfig{Hostname: "group", Address: "10.2.0.1"}}
	p.record.Network = nil
	p.config.Hostname = "group"
	must.Eq(t, localHosts+"10.2.0.1 group\n10.0.0.7 db\n10.0.0.8 cache\n", file())
	p.config.NetworkMode, p.config.ExtraHosts, p.cfg.NetworkIsolation = "host", []string{"gate:host-gateway"}, nil
	text, err := os.ReadFile("/etc/hosts")
	must.NoError(t, err)
	must.Eq(t, strings.TrimRight(string(text), "\n")+"\n127.0.0.1 group\n127.0.0.1 gate\n", file())
}

// The gateway is that of the default route, in whatever line of the table it stands.
func TestRoutesInAnyOrder(t *testing.T) {
	const header, route, gateway = "Iface Destination Gateway\n", "eth0 0000A8C0 00000000\n", "eth0 00000000 0100A8C0\n"
	for _, table := range []string{gateway, gateway + header + route, header + route + "short line\n" + gateway} {
		got, err := defaultRoute(table)
		must.NoError(t, err)
		must.Eq(t, "192.168.0.1", got)
	}
	_, err := defaultRoute("eth0 00000000 00000000\neth0 0000A8C0 0100A8C0\n")
	must.ErrorContains(t, err, "no default route")
}

// Settings of the network that this kernel does not have are left out.
func TestSettingsThatTheKernelLacks(t *testing.T) {
	spec.NetworkSysctls["net.ipv4.no_such_setting"] = "1"
	defer delete(spec.NetworkSysctls, "net.ipv4.no_such_setting")
	have := networkSysctls()
	must.MapNotContainsKey(t, have, "net.ipv4.no_such_setting")
	must.MapLen(t, len(spec.NetworkSysctls)-1, have)
}

// The job's signal goes before the image's, and one that is none is refused.
func TestSignalsThatStopATask(t *testing.T) {
	for _, row := range []struct {
		names []string
		want  syscall.Signal
		says  string
	}{
		{nil, syscall.SIGTERM, ""},
		{[]string{"", ""}, syscall.SIGTERM, ""},
		{[]string{"SIGUSR1", "SIGINT"}, syscall.SIGUSR1, ""},
		{[]string{"", "SIGINT"}, syscall.SIGINT, ""},
		{[]string{"2", ""}, syscall.SIGINT, ""},
		{[]string{"loudly", "SIGINT"}, 0, `stop signal "loudly" is none: write a name such as "SIGINT", or its number`},
		{[]string{"99"}, 0, `stop signal "99" is none`},
		{[]string{"0"}, 0, `stop signal "0" is none`},
	} {
		got, err := stopSignal(row.names...)
		must.Eq(t, row.want, got)
		if row.says == "" {
			must.NoError(t, err)
		} else {
			must.ErrorContains(t, err, row.says)
		}
	}
}

// Exit codes stand for a sudden end, and become words.
func TestExitsBySignals(t *testing.T) {
	for code, want := range map[int]unix.Signal{137: unix.SIGKILL, 139: unix.SIGSEGV, 134: unix.SIGABRT, 131: unix.SIGQUIT, 143: 0, 130: 0, 9: 0, 0: 0, 138: 0} {
		signal, sudden := diedOf(code)
		must.Eq(t, want != 0, sudden, must.Sprint(code))
		if sudden {
			must.Eq(t, want, signal)
		}
	}
	for code, want := range map[int]int{0: 0, 127: 0, 128: 0, 129: 1, 137: 9, 192: 64, 193: 0, 255: 0} {
		must.Eq(t, want, exitResult(runtime.Exit{Code: code}, nil).Signal, must.Sprint(code))
	}
}

// Hooks of CDI specs get an environment of the driver's, each of them, unless they have one.
func TestHooksHaveAnEnvironment(t *testing.T) {
	setHookEnv(nil)
	two := func() []specs.Hook {
		return []specs.Hook{{Path: "/a"}, {Path: "/b", Env: []string{"OWN=1"}}, {Path: "/c"}}
	}
	//lint:ignore SA1019 Prestart is deprecated, and CDI specs still use it.
	hooks := &specs.Hooks{Prestart: two(), CreateRuntime: two(), CreateContainer: two(), StartContainer: two(), Poststart: two(), Poststop: two()}
	setHookEnv(hooks)
	//lint:ignore SA1019 Prestart is deprecated, and CDI specs still use it.
	for i, list := range [][]specs.Hook{hooks.Prestart, hooks.CreateRuntime, hooks.CreateContainer, hooks.StartContainer, hooks.Poststart, hooks.Poststop} {
		must.Eq(t, fmt.Sprint([]string{hookPath}, []string{"OWN=1"}, []string{hookPath}), fmt.Sprint(list[0].Env, list[1].Env, list[2].Env), must.Sprint(i))
	}
}

// Which faults of a GPU end a task that holds it, and what it is told of them.
func TestFaultsThatEndATask(t *testing.T) {
	since := time.Unix(1e9, 0)
	lease := gpu.Lease{ID: "mine", StartedAt: since}
	held := gpu.Holding{UUID: gpuA, MPSGeneration: 3}
	mps := func(generation int64, of string, fault *gpu.Fault) gpu.GPUState {
		return gpu.GPUState{UUID: gpuA, MPS: &gpu.MPSState{Generation: generation, Fault: fault, FaultOf: of}}
	}
	fault := &gpu.Fault{Code: "mps-fault", Since: since}
	const ended = " had a fatal GPU error, which ended the GPU work of all programs on its MPS server"
	later := lease
	later.StartedAt = since.Add(time.Second + 1)
	sameSecond := lease
	sameSecond.StartedAt = since.Add(time.Second)
	for name, row := range map[string]struct {
		lease      gpu.Lease
		held       gpu.Holding
		state      gpu.GPUState
		code, says string
	}{
		"well":                       {lease, held, mps(3, "", nil), "", ""},
		"no daemon":                  {lease, held, gpu.GPUState{UUID: gpuA}, "", ""},
		"a fault that passes":        {lease, held, gpu.GPUState{Faults: []gpu.Fault{{Code: "hot"}}}, "", ""},
		"a fatal one":                {lease, held, gpu.GPUState{Faults: []gpu.Fault{{Code: "xid-79", Message: "it is gone", Fatal: true}}}, "xid-79", "GPU " + gpuA + ": it is gone"},
		"a fatal one of several":     {lease, held, gpu.GPUState{Faults: []gpu.Fault{{Code: "hot"}, {Code: "xid-79", Message: "it is gone", Fatal: true}}}, "xid-79", "GPU " + gpuA + ": it is gone"},
		"a replaced daemon":          {lease, held, mps(4, "", nil), codeLostServer, "GPU " + gpuA + ": the MPS daemon that the task was a client of has ended"},
		"an older daemon":            {lease, held, mps(2, "", nil), "", ""},
		"of a task without MPS":      {lease, gpu.Holding{UUID: gpuA}, mps(4, "", fault), "", ""},
		"nor of a daemon's fault":    {lease, gpu.Holding{UUID: gpuA}, mps(0, "", fault), "", ""},
		"of the first daemon":        {lease, gpu.Holding{UUID: gpuA, MPSGeneration: 1}, mps(1, "", fault), codeServerFault, "GPU " + gpuA + ": a program" + ended},
		"lost by the first daemon":   {lease, gpu.Holding{UUID: gpuA, MPSGeneration: 1}, mps(2, "", nil), codeLostServer, "has ended"},
		"a fault of one not known":   {lease, held, mps(3, "", fault), codeServerFault, "GPU " + gpuA + ": a program" + ended},
		"a fault of its own":         {lease, held, mps(3, "mine", fault), codeServerFault, "GPU " + gpuA + ": a program of this task" + ended},
		"a fault of another's":       {lease, held, mps(3, "other", fault), codeServerFault, "GPU " + gpuA + ": a program of another task" + ended},
		"a fault before it began":    {later, held, mps(3, "other", fault), "", ""},
		"a fault in the same second": {sameSecond, held, mps(3, "other", fault), codeServerFault, "a program of another task"},
	} {
		v, found := fatal(row.lease, row.held, row.state)
		must.Eq(t, row.code != "", found, must.Sprint(name))
		must.Eq(t, row.code, v.code, must.Sprint(name))
		must.StrContains(t, v.message, row.says, must.Sprint(name))
	}
}

// Notices stand in a fixed order, and are written only when they changed.
func TestNoticesAreWrittenInOrder(t *testing.T) {
	_, env := alone(t)
	var n notices
	all := []topic{
		{Container: "a", UUID: gpuA, Code: "x"}, {Container: "a", UUID: gpuA, Code: "y"}, {Container: "a", UUID: gpuB, Code: "x"}, {Container: "b", UUID: gpuA, Code: "x"},
	}
	for _, i := range []int{2, 0, 3, 1} {
		must.True(t, n.first(all[i]))
	}
	for range 5 {
		must.Eq(t, all, n.matching(func(topic) bool { return true }))
	}
	must.NoError(t, n.save(env.state))
	list, err := env.state.Notices()
	must.NoError(t, err)
	must.Eq(t, all, list.Told)
	must.NoError(t, env.state.WriteNotices(gpu.Notices{}))
	must.NoError(t, n.save(env.state), must.Sprint("nothing has changed"))
	list, err = env.state.Notices()
	must.NoError(t, err)
	must.SliceEmpty(t, list.Told)
}
