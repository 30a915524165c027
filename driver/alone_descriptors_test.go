// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/apparmor"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/cgroups/cgroupstest"
	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/rooted"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// isOpen reports whether this process has a descriptor open, and opens none to find out.
func isOpen(number int) bool {
	_, err := unix.FcntlInt(uintptr(number), unix.F_GETFD, 0)
	return err == nil
}

// descriptors counts those that are open.
func descriptors() (count int) {
	for number := range 4 * manyDescriptors {
		if isOpen(number) {
			count++
		}
	}
	return count
}

// withDescriptors does something while this process can open only some files more.
func withDescriptors(t *testing.T, more int, do func()) {
	t.Helper()
	limit := 0
	for ; more > 0 || isOpen(limit); limit++ {
		if !isOpen(limit) {
			more--
		}
	}
	var was unix.Rlimit
	must.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	must.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(limit), Max: was.Max}))
	defer func() { must.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)) }()
	do()
}

// manyDescriptors is more than any of the operations needs at once.
const manyDescriptors = 64

// Each file that an operation opens cannot be opened once: it says so, or does what it does
// otherwise, and leaves none open. This runs alone: the limit is of the whole process. What
// a tenant names is not looked up here: the library for that would remember that the kernel
// cannot, and take another way in all tests that follow.
func TestNoFileThatCannotBeOpenedGoesUnnoticed(t *testing.T) {
	cfg := allocated(t)
	_, _ = time.Now().Local(), apparmor.HostSupports() // what is looked up once is known
	defer debug.SetGCPercent(debug.SetGCPercent(-1))   // it would close what was left open
	for name, prepare := range map[string]func(t *testing.T, cfg drivers.TaskConfig) func() (string, error){
		"files": filesOperation, "stage": stageOperation,
		"leases": leasesOperation, "groups": groupsOperation, "one user": oneUserOperation, "clients": clientsOperation,
		"records": recordsOperation, "programs": programsOperation, "counts": countsOperation, "namespaces": namespacesOperation,
		"CDI": cdiOperation, "configuration": configurationOperation,
		"group": groupOperation, "full group": fullGroupOperation, "volume": volumeOperation, "propagation": propagationOperation, "source": sourceOperation,
	} {
		t.Run(name, func(t *testing.T) {
			do := prepare(t, *cfg)
			want, err := do()
			must.NoError(t, err)
			for more := 0; ; more++ {
				must.Less(t, manyDescriptors, more)
				before := descriptors()
				var got string
				withDescriptors(t, more, func() { got, err = do() })
				// A connection to a containerd that is away may try again beside it.
				must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool { return descriptors() <= before }), wait.Timeout(time.Minute), wait.Gap(time.Millisecond)),
					must.Sprint("descriptors stay open, where ", more, " could be opened"))
				if err == nil {
					must.Eq(t, want, got, must.Sprint("where ", more, " files could be opened"))
					break
				}
			}
		})
	}
}

func filesOperation(t *testing.T, cfg drivers.TaskConfig) func() (string, error) {
	shared := sharedMount(t, t.TempDir())
	cfg.Mounts = []*drivers.MountConfig{{TaskPath: "/vol", HostPath: shared, PropagationMode: "host-to-task"}}
	return func() (string, error) {
		files, err := openTaskFiles(&cfg, taskconfig.Config{}, taskconfig.Policy{})
		defer files.close()
		return fmt.Sprint(len(files.shown)), err
	}
}

// stageOperation makes what a start keeps on the host for a task, and the mounts of it.
func stageOperation(t *testing.T, cfg drivers.TaskConfig) func() (string, error) {
	d, env := alone(t)
	cfg.DNS = &drivers.DNSConfig{Servers: []string{"10.0.0.1"}}
	cfg.Mounts = []*drivers.MountConfig{{TaskPath: "/vol", HostPath: sharedMount(t, t.TempDir())}}
	return func() (_ string, err error) {
		p := &startPlan{env: env, cfg: &cfg, record: record.Record{Lease: gpu.Lease{Container: "box"}}}
		p.share.HAMi = true
		if p.files, err = openTaskFiles(&cfg, p.config, taskconfig.Policy{}); err != nil {
			return "", err
		}
		defer p.files.close()
		err = p.prepare(t.Context())
		var mounts []taskconfig.Mount
		if err == nil {
			mounts, err = p.taskMounts()
		}
		// Under a limit of the process this may fail too, and is done at last.
		removed := d.removeHostResources("box")
		return fmt.Sprint(len(p.shown), len(mounts)), errors.Join(err, removed)
	}
}

func leasesOperation(t *testing.T, _ drivers.TaskConfig) func() (string, error) {
	d, env := alone(t)
	must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, Seats: &gpu.SeatRules{HostMemoryMiB: 1 << 20}}))
	lease := gpu.Lease{ID: "mine", Container: "box", Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{{UUID: gpuA, SeatMiB: 1}}}
	said := ""
	note := func(what string) error {
		now, err := env.state.Lease("mine")
		said += fmt.Sprintln(what, now.Phase, now.Holdings)
		return err
	}
	return func() (string, error) {
		said = ""
		for _, step := range []struct {
			name string
			do   func() error
		}{
			{"claim", func() error { return d.leases.Claim(lease) }},
			{"resize", func() error { return d.leases.Resize(lease) }},
			{"started", func() error {
				started, err := d.leases.Started()
				said += fmt.Sprintln(len(started))
				return err
			}},
			{"end", func() error { return d.leases.End(lease, time.Now().Add(-time.Hour)) }},
			{"expire", func() error { return d.leases.Expire(time.Now()) }},
		} {
			if err := step.do(); err != nil {
				return "", err
			}
			if err := note(step.name); err != nil && step.name != "expire" {
				return "", err
			}
		}
		return said, nil
	}
}

func groupsOperation(t *testing.T, _ drivers.TaskConfig) func() (string, error) {
	d, env := alone(t)
	path, dir := cgroupstest.Fake(t)
	cgroupstest.Fill(t, dir, map[string]string{"cgroup.procs": itoa(noProcess)})
	must.NoError(t, env.state.WriteLease(gpu.Lease{ID: "mine", Container: "box", Cgroup: path}))
	return func() (string, error) {
		pids, err := (&seatHost{driver: d, uuid: gpuA}).Processes("mine")
		return fmt.Sprint(pids), err
	}
}

// oneUserOperation is a start that is refused for its user.
func oneUserOperation(t *testing.T, _ drivers.TaskConfig) func() (string, error) {
	_, env := alone(t)
	path, dir := cgroupstest.Fake(t)
	cgroupstest.Fill(t, dir, map[string]string{"cgroup.procs": itoa(os.Getpid())})
	held := []gpu.Holding{{UUID: gpuA, MPSGeneration: 3}}
	must.NoError(t, env.state.WriteLease(gpu.Lease{ID: "other", Container: "box", Cgroup: path, Phase: gpu.PhaseRunning, Holdings: held}))
	plan := &startPlan{env: env, share: spec.Share{OneUser: true, Holdings: held}}
	return func() (string, error) {
		err := plan.oneUser(t.Context(), nil, nil, &specs.Spec{Process: &specs.Process{User: specs.User{UID: 7}}})
		var refused *spec.NotReadyError
		if errors.As(err, &refused) {
			return "refused", nil
		}
		return "admitted", err
	}
}

func clientsOperation(t *testing.T, _ drivers.TaskConfig) func() (string, error) {
	d, env := alone(t)
	path, dir := cgroupstest.Fake(t)
	cgroupstest.Fill(t, dir, map[string]string{"cgroup.procs": "200"})
	pipe := t.TempDir()
	asked := filepath.Join(pipe, "asked")
	cgroupstest.Fill(t, pipe, map[string]string{"control": "#!/bin/sh\nread asked\ncase $asked in get_server_list) echo 100;; get_client_list*) echo 200;; *) echo $asked > " + asked + ";; esac\n"})
	must.NoError(t, os.Chmod(filepath.Join(pipe, "control"), 0o700))
	must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, MPS: &gpu.MPSState{Generation: 3, Control: filepath.Join(pipe, "control"), PipeDir: filepath.Join(pipe, "pipe")}}))
	one := known(d, env, gpu.Lease{ID: "mine", Phase: gpu.PhaseRunning, Cgroup: path, Holdings: []gpu.Holding{{UUID: gpuA, MPSGeneration: 3}}})
	return func() (string, error) {
		_ = os.Remove(asked)
		_, _, found := d.mpsOf(one)
		err := d.terminateClients(one)
		if !found {
			return "", errors.New("the daemon cannot be found") // what the kill goes on without
		}
		text, _ := os.ReadFile(asked)
		return string(text), err
	}
}

func recordsOperation(t *testing.T, _ drivers.TaskConfig) func() (string, error) {
	_, env := alone(t)
	records := record.StoreIn(env.settings.StateDir)
	return func() (string, error) {
		if err := records.Write(record.Kept{Container: "box", Labels: map[string]string{record.LabelTaskID: "task"}}); err != nil {
			return "", err
		}
		if err := records.MarkDestroyed("box"); err != nil {
			return "", err
		}
		found, err := records.OfTask("task")
		return fmt.Sprint(len(found), len(found) > 0 && found[0].Destroyed), err
	}
}

// programsOperation asks the device plugin's programs.
func programsOperation(t *testing.T, _ drivers.TaskConfig) func() (string, error) {
	d, env := alone(t)
	must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, Seats: &gpu.SeatRules{Suspender: gpu.Suspender{Command: []string{"/bin/sh", "-c", `cat >/dev/null; echo '{"failure":"busy"}'`}}}}))
	return func() (string, error) {
		answer, err := (&seatHost{driver: d, uuid: gpuA}).Checkpoint(t.Context(), gpu.CheckpointRequest{Action: gpu.CheckpointLook})
		return string(answer.Failure), errors.Join(err, runLimiter(t.Context(), []string{"/bin/true"}))
	}
}

func countsOperation(t *testing.T, _ drivers.TaskConfig) func() (string, error) {
	_, env := alone(t)
	must.NoError(t, env.state.WriteDriverCounts(gpu.NewDriverCounts()))
	return func() (string, error) {
		var c counts
		if err := c.save(env.state); err != nil {
			return "", err
		}
		var seen notices
		if err := seen.load(env.state); err != nil {
			return "", err
		}
		seen.first(topic{Container: "box"})
		if err := seen.save(env.state); err != nil {
			return "", err
		}
		all, err := env.state.Notices()
		return fmt.Sprint(len(all.Told)), err
	}
}

// namespacesOperation takes hold of a namespace, and looks for the gateway of one.
func namespacesOperation(t *testing.T, _ drivers.TaskConfig) func() (string, error) {
	return func() (string, error) {
		held, err := holdNamespace("net", func() (runtime.Status, error) { return runtime.Status{Running: true, PID: os.Getpid()}, nil })
		if err != nil {
			return "", err
		}
		p := &startPlan{namespaces: spec.Namespaces{Network: "/proc/self/ns/net"}}
		gateway, err := p.gateway()
		if err != nil && strings.Contains(err.Error(), "has no default route") {
			gateway, err = "none", nil
		}
		return gateway, errors.Join(err, held.Close())
	}
}

func cdiOperation(t *testing.T, _ drivers.TaskConfig) func() (string, error) {
	dir := t.TempDir()
	cgroupstest.Fill(t, dir, map[string]string{"gpu.json": `{"cdiVersion":"0.5.0","kind":"example.com/gpu","devices":[{"name":"one","containerEdits":{"env":["ONE=1"]}}]}`})
	return func() (string, error) {
		s := &specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}}
		err := cdiDevices([]string{dir}, []string{"example.com/gpu=one"})(t.Context(), nil, nil, (*oci.Spec)(s))
		return strings.Join(s.Process.Env, " "), err
	}
}

// configurationOperation configures a driver, which begins to work in the background when
// that has succeeded, and not before.
func configurationOperation(t *testing.T, _ drivers.TaskConfig) func() (string, error) {
	var block config.Config
	parse(t, config.Schema, ``, &block)
	block.StateDir = t.TempDir()
	var data []byte
	must.NoError(t, base.MsgPackEncode(&data, block))
	return func() (string, error) {
		d := unconfigured(t)
		d.loops.Do(func() {}) // nothing in it is asked of here
		err := d.SetConfig(&base.Config{PluginConfig: data})
		_, disabled := d.configured()
		d.Shutdown()
		if disabled != nil && err == nil {
			return "disabled", nil
		}
		return "configured", err
	}
}

// groupOperation and those below it open one file: what they are parts of fails before them.
func groupOperation(t *testing.T, _ drivers.TaskConfig) func() (string, error) {
	path, dir := cgroupstest.Fake(t)
	must.NoError(t, os.Mkdir(filepath.Join(dir, "below"), 0o700))
	return func() (string, error) {
		dirs, err := cgroups.Tree(path, cgroups.Unified())
		return fmt.Sprint(len(dirs)), err
	}
}

// fullGroupOperation finds a control group whose processes have not ended.
func fullGroupOperation(t *testing.T, _ drivers.TaskConfig) func() (string, error) {
	path, dir := cgroupstest.Fake(t)
	cgroupstest.Fill(t, dir, map[string]string{"cgroup.procs": itoa(noProcess), "cgroup.kill": ""})
	over, cancel := context.WithCancel(t.Context())
	cancel()
	return func() (string, error) {
		err := cgroups.Empty(over, path, cgroups.Unified())
		if errors.Is(err, context.Canceled) {
			return "full", nil
		}
		return "empty", err
	}
}

func volumeOperation(t *testing.T, cfg drivers.TaskConfig) func() (string, error) {
	return func() (string, error) {
		var files taskFiles
		defer files.close()
		err := files.openVolume("volume0", &drivers.MountConfig{HostPath: cfg.AllocDir})
		return fmt.Sprint(len(files.shown)), err
	}
}

func propagationOperation(t *testing.T, cfg drivers.TaskConfig) func() (string, error) {
	source, err := rooted.OpenHost(sharedMount(t, t.TempDir()))
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, source.Close()) })
	private := filepath.Join(t.TempDir(), "private")
	sharedMount(t, private)
	must.NoError(t, unix.Mount("", private, "", unix.MS_PRIVATE, ""))
	refused, err := rooted.OpenHost(private)
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, refused.Close()) })
	return func() (string, error) {
		err := checkPropagation(refused, rooted.Shared)
		if err != nil && !errors.Is(err, unix.EMFILE) {
			return "refused", checkPropagation(source, rooted.Slave)
		}
		return "taken", err
	}
}

// sourceOperation shows a directory of the host in a stage.
func sourceOperation(t *testing.T, cfg drivers.TaskConfig) func() (string, error) {
	_, env := alone(t)
	p := &startPlan{env: env, cfg: &cfg, files: &taskFiles{}}
	must.NoError(t, p.setStage("box"))
	t.Cleanup(func() { must.NoError(t, rooted.RemoveStage(p.stage.Dir())) })
	return func() (string, error) {
		m := &placement{Mount: specs.Mount{Type: "bind", Source: cfg.AllocDir}}
		err := p.showSource(m)
		return fmt.Sprint(m.shown != ""), err
	}
}
