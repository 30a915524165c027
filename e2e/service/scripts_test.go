// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"rsc.io/script"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/internal/jobscript"
)

// machinesOf finds the machines of a script among what begins its cases.
var machinesOf = regexp.MustCompile(`(?m)^machines .*$`)

// patience is how long a look is repeated.
const patience = time.Minute

// TestScripts runs testdata/script on a real Nomad with real plugins on simulated GPUs; package jobscript says
// how they are written, and commands has the words. A look is repeated until it succeeds.
// Scripts with the same machines have one cluster, which is emptied between cases. At its end a case has no
// instance that two hold.
func TestScripts(t *testing.T) {
	on := map[string][]jobscript.File{}
	for _, f := range jobscript.Files(t, "testdata/script/*.txt") {
		machines, _, _ := strings.Cut(strings.TrimPrefix(machinesOf.FindString(f.Begins), "machines "), "\n")
		on[machines] = append(on[machines], f)
	}
	for machines, files := range on {
		t.Run(machines, func(t *testing.T) {
			t.Parallel()
			count, topology, _ := strings.Cut(machines, " ")
			n, err := strconv.Atoi(count)
			if err != nil {
				t.Fatalf("%s: machines %q are not valid (as 3, or 1 dgx-v100)", files[0].Path, machines)
			}
			if topology == "" {
				topology = "t4"
			}
			var o cluster.Options
			for range n {
				o.Nodes = append(o.Nodes, cluster.NodeOptions{Topology: filepath.Join(root, "e2e", "topology", topology+".hcl"), GPUs: cut})
			}
			ctx, c := startCluster(t, o)
			for _, f := range files {
				t.Run(f.Name, func(t *testing.T) {
					f.Run(t, func(t *testing.T, set []string, text string) {
						s := &scripted{ctx: ctx, t: t, c: c, configs: f.Configs, marked: map[string][]string{}}
						t.Cleanup(s.empty)
						if err := f.Execute(t, s.commands(), set, text); err != nil {
							t.Fatal(err)
						}
						doubleBooked(ctx, t, c.API)
						s.r.kill(syscall.SIGTERM) // which leaves the lead to the next
					})
				})
			}
		})
	}
}

// scripted is the run of a case.
type scripted struct {
	ctx     context.Context
	t       *testing.T
	c       *cluster.Cluster
	r       *replica
	configs map[string]string
	spaces  []string            // namespaces that were made
	marked  map[string][]string // allocs by job
	began   time.Time
}

// empty leaves the cluster as it was found.
func (s *scripted) empty() {
	everywhere := in("*")
	until(context.Background(), s.t, "empty the cluster", patience, func() (bool, string) {
		jobs, _, err := s.c.API.Jobs().List(everywhere)
		for _, j := range jobs {
			_, _, purge := s.c.API.Jobs().Deregister(j.ID, true, into(j.Namespace))
			err = errors.Join(err, purge)
		}
		list, _, err2 := s.c.API.Allocations().List(everywhere)
		return errors.Join(err, err2) == nil && len(jobs) == 0 && !slices.ContainsFunc(list, func(a *api.AllocationListStub) bool { return !cluster.Terminal(a) }), fmt.Sprint(len(jobs), " jobs, ", err, err2)
	})
	err := s.c.API.System().GarbageCollect()
	stored, _, err2 := s.c.API.Variables().PrefixList("nomad-gpu", nil)
	err = errors.Join(err, err2)
	for _, v := range stored {
		if strings.HasSuffix(v.Path, "/leader") { // it is locked for a moment still
			continue
		}
		_, gone := s.c.API.Variables().Delete(v.Path, nil)
		err = errors.Join(err, gone)
	}
	for _, n := range s.c.Nodes {
		_, again := s.c.API.Nodes().ToggleEligibility(n.ID, true, nil)
		err = errors.Join(err, again)
	}
	for _, name := range s.spaces {
		_, gone := s.c.API.Namespaces().Delete(name, nil)
		err = errors.Join(err, gone)
	}
	if err != nil {
		s.t.Error(err)
	}
}

func in(namespace string) *api.QueryOptions   { return &api.QueryOptions{Namespace: namespace} }
func into(namespace string) *api.WriteOptions { return &api.WriteOptions{Namespace: namespace} }

// until repeats a look until it succeeds. The error is that of the last one.
func (s *scripted) until(look func() error) error {
	var err error
	for began := time.Now(); time.Since(began) < patience && s.ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		if err = look(); err == nil {
			return nil
		}
	}
	return fmt.Errorf("not within %s: %w", patience, err)
}

// each does something with every job that the first argument names.
func (s *scripted) each(do func(j place, more []string) error) func(args []string) error {
	return func(args []string) error {
		list, err := jobscript.Names(args[0])
		for _, name := range list {
			var j place
			if j.namespace, j.id, _ = strings.Cut(name, "/"); err == nil {
				err = do(j, args[1:])
			}
		}
		return err
	}
}

// place is where a job is.
type place struct{ namespace, id string }

func (p place) String() string { return p.namespace + "/" + p.id }

// looks is each, with a look that is repeated until it succeeds.
func (s *scripted) looks(look func(j place, more []string) error) func(args []string) error {
	return s.each(func(j place, more []string) error {
		return s.until(func() error { return look(j, more) })
	})
}

// live are the allocs of a job that run or are to.
func (s *scripted) live(j place) []*api.AllocationListStub {
	return allocs(s.ctx, s.t, s.c.API, j.namespace, j.id)
}

// runs is an error while a job has another number of allocs, or one that does not run.
func (s *scripted) runs(j place, with string) error {
	list := s.live(j)
	for _, a := range list {
		if a.ClientStatus != "running" {
			return fmt.Errorf("an alloc of %s is %s", j, a.ClientStatus)
		}
	}
	return jobscript.Compared("allocs of "+j.String(), len(list), with)
}

func ids(list []*api.AllocationListStub) (out []string) {
	for _, a := range list {
		out = append(out, a.ID)
	}
	slices.Sort(out)
	return out
}

func (s *scripted) job(j place) (*api.Job, error) {
	now, _, err := s.c.API.Jobs().Info(j.id, in(j.namespace))
	return now, err
}

// matches is an error where a text does not match a pattern.
func matches(text, pattern string) error {
	expression, err := regexp.Compile(pattern)
	if err != nil || !expression.MatchString(text) {
		return errors.Join(err, fmt.Errorf("%q does not match %s", text, pattern))
	}
	return nil
}

// submit has the service admit jobs. A refusal is for stderr to look at.
func (s *scripted) submit() script.Cmd {
	like := func() map[string]any {
		return map[string]any{"Driver": "raw_exec", "KillTimeout": time.Second, "Config": map[string]any{"command": "sleep", "args": []string{"100000"}}, "Resources": map[string]any{"CPU": 50, "MemoryMB": 20}}
	}
	return script.Command(script.CmdUsage{Args: "JOB [WORD=VALUE...]", Summary: "have the service admit a job"}, func(_ *script.State, args ...string) (script.WaitFunc, error) {
		err := jobscript.Jobs(like(), args, func(text json.RawMessage) error {
			var j api.Job
			if err := json.Unmarshal(text, &j); err != nil {
				return err
			}
			for _, g := range j.TaskGroups {
				if never := 0; g.RestartPolicy == nil {
					g.RestartPolicy = &api.RestartPolicy{Attempts: &never}
				}
			}
			_, _, err := s.r.API.Jobs().Register(&j, (&api.WriteOptions{}).WithContext(s.ctx))
			return err
		})
		return func(*script.State) (string, string, error) {
			if err != nil {
				return "", err.Error(), err
			}
			return "", "", nil
		}, nil
	})
}

// commands are the words of scripts: what people, Nomad and machines do, and what is looked at.
func (s *scripted) commands() map[string]script.Cmd {
	command := jobscript.Command
	return map[string]script.Cmd{
		"machines": command("COUNT [TOPOLOGY]", "the machines of the cluster, with two T4 each or of a topology", func([]string) error { return nil }),
		"service": command("[CONFIG]", "start the service, in the place of one that is killed", func(args []string) error {
			text := ""
			if len(args) > 0 {
				var known bool
				if text, known = s.configs[args[0]]; !known {
					return fmt.Errorf("no configuration %s", args[0])
				}
			}
			if s.r != nil {
				s.r.kill(syscall.SIGKILL)
			}
			s.r = serve(s.ctx, s.t, s.c, text)
			return s.until(func() error {
				if code, _, said := s.r.ask(s.t, "GET", "/readyz", ""); code != 200 {
					return fmt.Errorf("%d %s", code, said)
				}
				return nil
			})
		}),
		"namespace": command("NAME", "make a namespace", func(args []string) error {
			s.spaces = append(s.spaces, args[0])
			_, err := s.c.API.Namespaces().Register(&api.Namespace{Name: args[0]}, nil)
			return err
		}),
		"eligible":   command("NODE", "have a node take work again", func(args []string) error { return s.turn(args[0], true) }),
		"ineligible": command("NODE", "have a node take no new work", func(args []string) error { return s.turn(args[0], false) }),
		"submit":     s.submit(),
		"stop": command("JOB", "stop a job", s.each(func(j place, _ []string) error {
			_, _, err := s.c.API.Jobs().Deregister(j.id, false, into(j.namespace))
			return err
		})),
		"revert": command("JOB VERSION", "have Nomad run a former version, around the service", s.each(func(j place, more []string) error {
			version, err := strconv.ParseUint(more[0], 10, 64)
			if err == nil {
				_, _, err = s.c.API.Jobs().Revert(j.id, version, nil, into(j.namespace), "", "")
			}
			return err
		})),
		"tag": command("JOB VERSION NAME", "give a version a name", s.each(func(j place, more []string) error {
			version, err := strconv.ParseUint(more[0], 10, 64)
			if err == nil {
				_, err = s.c.API.Jobs().TagVersion(j.id, version, more[1], "", into(j.namespace))
			}
			return err
		})),
		"promote": command("JOB", "promote the canaries of a job through the service, once they are healthy", s.looks(func(j place, _ []string) error {
			d, _, err := s.c.API.Jobs().LatestDeployment(j.id, in(j.namespace))
			if err == nil {
				_, _, err = s.r.API.Deployments().PromoteAll(d.ID, into(j.namespace))
			}
			return err
		})),
		"after": command("SECONDS", "let time go by", func(args []string) error {
			n, err := strconv.Atoi(args[0])
			time.Sleep(time.Duration(n) * time.Second)
			return err
		}),
		"clock": command("", "count seconds from now on", func([]string) error { s.began = time.Now(); return nil }),
		"took": command("SECONDS", "the clock shows that many seconds", func(args []string) error {
			return jobscript.Compared("seconds", int(time.Since(s.began).Seconds()), args[0])
		}),

		"runs": command("JOB [COUNT]", "so many allocs of a job run, and no other is to", s.looks(func(j place, more []string) error {
			return s.runs(j, append(more, "1")[0])
		})),
		"failed": command("JOB NUMBER", "so many allocs of a job have failed, and Nomad has said when it starts another", s.looks(func(j place, more []string) error {
			list, _, err := s.c.API.Jobs().Allocations(j.id, false, in(j.namespace))
			n, announced := 0, false
			for _, a := range list {
				if a.ClientStatus == api.AllocClientStatusFailed {
					n, announced = n+1, announced || a.FollowupEvalID != ""
				}
			}
			if !announced {
				n = 0
			}
			return errors.Join(err, jobscript.Compared("failed allocs of "+j.String(), n, more[0]))
		})),
		"mark": command("JOB", "remember the allocs of a job", s.each(func(j place, _ []string) error {
			s.marked[j.String()] = ids(s.live(j))
			return nil
		})),
		"kept": command("JOB", "a job has the allocs that were remembered", s.looks(func(j place, _ []string) error {
			if now, was := ids(s.live(j)), s.marked[j.String()]; !slices.Equal(now, was) {
				return fmt.Errorf("%s has allocs %s, and had %s", j, now, was)
			}
			return nil
		})),
		"replaced": command("JOB", "a job has other allocs than were remembered", s.looks(func(j place, _ []string) error {
			now := ids(s.live(j))
			if len(now) == 0 || slices.ContainsFunc(s.marked[j.String()], func(id string) bool { return slices.Contains(now, id) }) {
				return fmt.Errorf("%s has allocs %s", j, now)
			}
			return nil
		})),
		"had": command("JOB NUMBER", "a job has had so many allocs in all", s.each(func(j place, more []string) error {
			list, _, err := s.c.API.Jobs().Allocations(j.id, true, in(j.namespace))
			return errors.Join(err, jobscript.Compared("allocs ever of "+j.String(), len(list), more[0]))
		})),
		"on": command("JOB NODE", "a job runs on a node alone", s.each(func(j place, more []string) error {
			for _, a := range s.live(j) {
				if a.NodeName != more[0] {
					return fmt.Errorf("an alloc of %s is on %s", j, a.NodeName)
				}
			}
			return nil
		})),
		"share": command("JOBS gpus|nodes NUMBER", "jobs are on so many GPUs or nodes", func(args []string) error {
			list, err := jobscript.Names(args[0])
			on := map[string]bool{}
			if args[1] != "gpus" && args[1] != "nodes" {
				return fmt.Errorf("%q is not valid (gpus, nodes)", args[1])
			}
			for _, name := range list {
				namespace, id, _ := strings.Cut(name, "/")
				for _, a := range s.live(place{namespace, id}) {
					full, wrong := s.c.Alloc(s.ctx, a.ID)
					if wrong != nil {
						return wrong
					}
					for _, d := range full.AllocatedResources.Tasks["t"].Devices {
						on[map[string]string{"gpus": a.NodeID + d.Name, "nodes": a.NodeID}[args[1]]] = true
					}
				}
			}
			return errors.Join(err, jobscript.Compared(args[1], len(on), args[2]))
		}),
		"waits": command("JOB PATTERN", "people are told why a job waits", s.looks(func(j place, more []string) error {
			var text []byte
			for _, p := range pictureOf(s.ctx, s.t, s.r).Pending {
				if p.Namespace == j.namespace && p.JobID == j.id {
					text, _ = json.Marshal(p)
				}
			}
			return matches(string(text), more[0])
		})),
		"bears": command("JOB PATTERN", "the constraints of a job's first group are as given: Nomad's own tools tell them", s.looks(func(j place, more []string) error {
			now, err := s.job(j)
			if err != nil {
				return err
			}
			return matches(constraints(now), more[0])
		})),
		"idle": command("", "the service sees all GPUs free", func([]string) error {
			return s.until(func() error {
				for _, n := range pictureOf(s.ctx, s.t, s.r).Nodes {
					for _, g := range n.GPUs {
						if !g.Idle() {
							return fmt.Errorf("held by %v", g.Holders)
						}
					}
				}
				return nil
			})
		}),
		"deployment": command("JOB PATTERN", "the newest deployment of a job has a status", s.looks(func(j place, more []string) error {
			d, _, err := s.c.API.Jobs().LatestDeployment(j.id, in(j.namespace))
			if err != nil || d == nil {
				return fmt.Errorf("deployment of %s: %v, %w", j, d, err)
			}
			return matches(d.Status+": "+d.StatusDescription, more[0])
		})),
		"tagged": command("JOB VERSION", "this version of a job alone has a name", s.each(func(j place, more []string) error {
			versions, _, _, err := s.c.API.Jobs().Versions(j.id, false, in(j.namespace))
			for _, v := range versions {
				if named := v.VersionTag != nil; named != (fmt.Sprint(*v.Version) == more[0]) {
					err = errors.Join(err, fmt.Errorf("version %d has a name: %v", *v.Version, named))
				}
			}
			return err
		})),
		"answers": command("PATTERN ARGUMENT...", "the service's command answers so", func(args []string) error {
			home, asked := s.t.TempDir(), slices.Clone(args[1:])
			for i, arg := range asked {
				if text, is := s.configs[arg]; is {
					asked[i] = filepath.Join(home, arg)
					write(s.t, asked[i], text)
				}
			}
			return s.until(func() error {
				_, stdout, stderr := scheduler(s.ctx, s.t, home, s.r.URL, asked...)
				return matches(stdout+stderr, args[0])
			})
		}),
	}
}

func (s *scripted) turn(name string, eligible bool) error {
	for _, n := range s.c.Nodes {
		if n.Name == name {
			_, err := s.c.API.Nodes().ToggleEligibility(n.ID, eligible, nil)
			return err
		}
	}
	return fmt.Errorf("no node %s", name)
}
