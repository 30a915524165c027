// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
	"rsc.io/script"

	"github.com/nomad-gpu/nomad-gpu/internal/jobscript"
)

// TestScripts runs testdata/script with the model of Nomad; package jobscript says what scripts are, and
// scriptCommands has their commands. At its end each case has a minute without events; then the oracle of the
// random histories must have nothing to say, and nothing may have waited in Nomad that could start at any time.
func TestScripts(t *testing.T) {
	for _, f := range jobscript.Files(t, "testdata/script/*.txt") {
		maps.Copy(f.Configs, map[string]string{"model.hcl": modelConfig, "evict.hcl": noMinimum, "fair.hcl": fmt.Sprintf(fairConfig, 4, 4)})
		t.Run(f.Name, func(t *testing.T) {
			f.Run(t, func(t *testing.T, set []string, text string) {
				synctest.Test(t, func(t *testing.T) { (&scripted{t: t, configs: f.Configs}).run(f, set, text) })
			})
		})
	}
}

// scripted is the run of a case: the service beside the model of Nomad.
type scripted struct {
	*modelRun
	t        *testing.T
	configs  map[string]string
	started  int            // when it was marked
	bounds   map[string]int // slices that a namespace may hold at any time
	refusals map[string]func(node string) bool
	odd      bool // what is at the end does not have to be in order
}

func (s *scripted) run(f jobscript.File, set []string, text string) {
	err := f.Execute(s.t, s.scriptCommands(), set, text)
	if err == nil && s.modelRun != nil && !s.odd {
		s.pause(60)
		s.settled()
	}
	if s.modelRun != nil && (err != nil || s.t.Failed()) {
		s.t.Log(strings.Join(s.log, "\n"))
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// settled is what must be true where nothing happens any more.
func (s *scripted) settled() {
	wrong := s.oracle()
	for _, line := range s.inVain(s.log) {
		_, whom, _ := strings.Cut(line, ": job ")
		whom, _, _ = strings.Cut(whom, " ")
		if stopped := s.jobs[whom].job.Stop; stopped == nil || !*stopped {
			wrong = append(wrong, "what others were evicted for does not run: "+line)
		}
	}
	wrong = append(append(wrong, s.waited...), s.repeated...)
	if s.unchangeable > 0 || s.again > 0 {
		wrong = append(wrong, fmt.Sprintf("it was tried to change what was dispatched %d times, and what had ended %d times", s.unchangeable, s.again))
	}
	for _, what := range wrong {
		s.t.Errorf("at the end: %s", what)
	}
}

// pause lets seconds go by.
func (s *scripted) pause(seconds int) {
	for range seconds {
		s.second(s.t.Context())
		for namespace, most := range s.bounds {
			if n := s.used(namespace); n > most {
				s.t.Errorf("%s: namespace %s holds %d slices of %d", time.Now().Format("04:05"), namespace, n, most)
			}
		}
	}
}

func (s *scripted) jobOf(name string) (*modelJob, error) {
	if j := s.jobs[name]; j != nil {
		return j, nil
	}
	return nil, fmt.Errorf("no job %s; there are %s", name, slices.Sorted(maps.Keys(s.jobs)))
}

// each does something with every job that the first argument names.
func (s *scripted) each(do func(name string, j *modelJob, more []string) error) func(args []string) error {
	return func(args []string) error {
		list, err := jobscript.Names(args[0])
		for _, name := range list {
			if err != nil {
				break
			}
			var j *modelJob
			if j, err = s.jobOf(name); err == nil {
				err = do(name, j, args[1:])
			}
		}
		return err
	}
}

// named is the node with a name.
func (s *scripted) named(name string) (*api.Node, error) {
	for _, n := range s.nodes {
		if n.Name == name {
			return n, nil
		}
	}
	return nil, fmt.Errorf("no node %s", name)
}

// staying are the allocs of a job that do not stop, the oldest first.
func (s *scripted) staying(j *modelJob) (list []*modelAlloc) {
	for _, a := range s.allocs {
		if a.stub.JobID == j.key.ID && a.stub.Namespace == j.key.Namespace && a.stopping == 0 {
			list = append(list, a)
		}
	}
	return list
}

// live counts the allocs of a job that do not stop and are no canaries, of a group or all.
func (s *scripted) live(j *modelJob, group string) (n int) {
	for _, a := range s.staying(j) {
		if !a.canary() && (group == "" || a.stub.TaskGroup == group) {
			n++
		}
	}
	return n
}

// scriptCommands are the words of scripts: what people, Nomad and machines do, and what is looked at.
func (s *scripted) scriptCommands() map[string]script.Cmd {
	return map[string]script.Cmd{
		"cluster": jobscript.Command("MACHINESxGPUS [CONFIG]", "start the service beside Nomad, with GPUs of 16 slices", func(args []string) error {
			var machines, gpus int
			if _, err := fmt.Sscanf(args[0], "%dx%d", &machines, &gpus); err != nil {
				return fmt.Errorf("cluster %q is not valid (as 3x2)", args[0])
			}
			name := "model.hcl"
			if len(args) > 1 {
				name = args[1]
			}
			text, known := s.configs[name]
			if !known {
				return fmt.Errorf("no configuration %s; there are %s", name, slices.Sorted(maps.Keys(s.configs)))
			}
			s.modelRun = newRun(s.t, machines, gpus, text)
			s.stops, s.bounds, s.refusals = map[string]int{}, map[string]int{}, map[string]func(string) bool{}
			s.refuses = func(j *modelJob, n *api.Node) string {
				if no := s.refusals[j.key.String()]; no != nil && no(n.Name) {
					return portTaken
				}
				return ""
			}
			return nil
		}),
		"submit": jobscript.Command("JOB [WORD=VALUE...]", "have the service admit a job, and Nomad run it", func(args []string) error {
			return jobscript.Jobs(map[string]any{"Driver": "docker"}, args, func(job json.RawMessage) error {
				before := len(s.log)
				s.submit(s.t.Context(), job)
				for _, line := range s.log[before:] {
					if refused, is := strings.CutPrefix(line, "  refused: "); is {
						return errors.New(refused)
					}
				}
				return nil
			})
		}),
		"register": jobscript.Command("JOB [WORD=VALUE...]", "give Nomad a job around the service", func(args []string) error {
			return jobscript.Jobs(map[string]any{"Driver": "docker"}, args, func(job json.RawMessage) error { s.register(job); return nil })
		}),
		"revert": jobscript.Command("JOB VERSION", "have Nomad run a former version, around the service", s.each(func(_ string, j *modelJob, more []string) error {
			version, err := strconv.Atoi(more[0])
			if err == nil {
				s.register(j.versions[version])
			}
			return err
		})),
		"stop":     jobscript.Command("JOB", "stop a job", s.each(func(_ string, j *modelJob, _ []string) error { s.stop(j); return nil })),
		"complete": jobscript.Command("JOB", "have all of a batch job end by itself", s.each(s.completes)),
		"kill":     jobscript.Command("JOB", "kill the oldest alloc of a job: Nomad starts another", s.each(s.oldest(func(a *modelAlloc) { s.kill(a) }))),
		"crash":    jobscript.Command("JOB", "have the oldest alloc of a job fail: Nomad starts another after a while", s.each(s.oldest(func(a *modelAlloc) { s.crash(a) }))),
		"end-one":  jobscript.Command("JOB", "have the oldest alloc of a batch job complete", s.each(s.oldest(func(a *modelAlloc) { s.complete(a) }))),
		"lose": jobscript.Command("JOB", "kill the oldest alloc of a job, whose node takes no new work", s.each(s.oldest(func(a *modelAlloc) {
			s.setEligibility(s.node(a.stub.NodeID), "ineligible")
			s.kill(a)
		}))),
		"end-on": jobscript.Command("NODE", "have the allocs of batch jobs on a node complete", func(args []string) error {
			for _, a := range slices.Clone(s.allocs) {
				if a.stub.NodeName == args[0] && *s.jobs[a.stub.Namespace+"/"+a.stub.JobID].job.Type == "batch" {
					s.complete(a)
				}
			}
			return nil
		}),
		"promote": jobscript.Command("JOB", "promote the canaries of a job", s.each(func(_ string, j *modelJob, _ []string) error { s.promote(j); return nil })),
		"scale": jobscript.Printing("JOB GROUP COUNT", "scale a group through the service, and print whether it has to wait", func(args []string) (string, error) {
			j, err := s.jobOf(args[0])
			if err != nil {
				return "", err
			}
			if s.scaleGroup(s.t, j.key, args[1], atoi(s.t, args[2])) {
				return "held\n", nil
			}
			return "let go\n", nil
		}),
		"forget":   jobscript.Command("", "lose all that the service has stored", func([]string) error { clear(s.store.Items); return nil }),
		"join":     jobscript.Command("POOL MODEL", "add a node with two GPUs of a model to a pool", func(args []string) error { s.join(args[0], args[1]); return nil }),
		"rescale":  jobscript.Command("JOB COUNT", "scale a job around the service", s.each(func(_ string, j *modelJob, more []string) error { s.scale(j, atoi(s.t, more[0])); return nil })),
		"dispatch": jobscript.Command("PARENT CHILD [PRIORITY]", "dispatch a child around the service", s.each(s.dispatches)),
		"slow":     jobscript.Command("JOB-ID SECONDS", "have the allocs of a job take long to stop", func(args []string) error { s.stops[args[0]] = atoi(s.t, args[1]); return nil }),
		"refuse": jobscript.Command("JOB all|NODE|except [NODE]", "have Nomad start a job nowhere, not on a node, or on one alone, for a reason that the service does not see", func(args []string) error {
			s.refusals[args[0]] = func(node string) bool {
				return args[1] == "all" || args[1] == node || args[1] == "except" && node != args[2]
			}
			return nil
		}),
		"accept":     jobscript.Command("JOB", "have Nomad refuse a job no more", func(args []string) error { delete(s.refusals, args[0]); return nil }),
		"eligible":   jobscript.Command("NODE", "have a node take work again", func(args []string) error { return s.turn(args[0], "eligible") }),
		"ineligible": jobscript.Command("NODE", "have a node take no new work", func(args []string) error { return s.turn(args[0], "ineligible") }),
		"empty": jobscript.Command("NODE", "have all that runs on a node lost", func(args []string) error {
			for _, a := range s.allocs {
				if a.stub.NodeName == args[0] {
					s.end(a)
					s.noteLost(a)
				}
			}
			return nil
		}),
		"volume": jobscript.Command("NODE NAME [read-only]", "give a node a host volume", s.changes(func(n *api.Node, more []string) {
			n.HostVolumes = map[string]*api.HostVolumeInfo{more[0]: {ReadOnly: len(more) > 1}}
		})),
		"csi": jobscript.Command("NODE PLUGIN", "give a node a CSI plugin", s.changes(func(n *api.Node, more []string) {
			n.CSINodePlugins = map[string]*api.CSIInfo{more[0]: {Healthy: true}}
		})),
		"driver": jobscript.Command("NODE healthy|unhealthy", "give a node a docker driver", s.changes(func(n *api.Node, more []string) {
			n.Drivers = map[string]*api.DriverInfo{"docker": {Detected: true, Healthy: more[0] == "healthy"}}
		})),
		"lead": jobscript.Command("[no]", "have another replica lead, which knows what is stored", func(args []string) error {
			if len(args) == 0 || args[0] != "no" {
				s.lead(s.t.Context())
			}
			return nil
		}),
		"after":    jobscript.Command("SECONDS", "let time go by", func(args []string) error { s.pause(atoi(s.t, args[0])); return nil }),
		"bound":    jobscript.Command("NAMESPACE SLICES", "from now on a namespace must never hold more", func(args []string) error { s.bounds[args[0]] = atoi(s.t, args[1]); return nil }),
		"mark":     jobscript.Command("", "count what is started from now on", func([]string) error { s.started = s.modelRun.started; return nil }),
		"restless": jobscript.Command("REASON", "do not look at the end whether all is in order", func([]string) error { s.odd = true; return nil }),

		"running": jobscript.Command("[JOB...]", "these jobs and no others hold GPUs or run", func(args []string) error {
			if got, want := s.running(), strings.Join(slices.Sorted(slices.Values(args)), " "); got != want {
				return fmt.Errorf("running: %s, want %s", cmp.Or(got, "nothing"), cmp.Or(want, "nothing"))
			}
			return nil
		}),
		"runs": jobscript.Command("JOB [COUNT] [GROUP]", "so many allocs of a job run, or any", s.each(func(name string, j *modelJob, more []string) error {
			count, group := ">=1", ""
			if len(more) > 0 {
				count, group = more[0], strings.Join(more[1:], "")
			}
			return jobscript.Compared("allocs of "+name, s.live(j, group), count)
		})),
		"canaries": jobscript.Command("JOB COUNT", "so many canaries of a job run", s.each(func(name string, j *modelJob, more []string) error {
			_, canaries := s.runsOf(j.key.ID)
			return jobscript.Compared("canaries of "+name, canaries, more[0])
		})),
		"devices": jobscript.Command("JOB COUNT", "a job asks for so many kinds of devices", s.each(func(name string, j *modelJob, more []string) error {
			return jobscript.Compared("devices of "+name, len(j.job.TaskGroups[0].Tasks[0].Resources.Devices), more[0])
		})),
		"on-cpu": jobscript.Command("[JOB...]", "people are told that these jobs run without GPUs", func(args []string) error {
			var list []string
			for _, one := range s.shown().OnCPU {
				list = append(list, one.Namespace+"/"+one.JobID)
			}
			if slices.Sort(list); !slices.Equal(list, slices.Sorted(slices.Values(args))) {
				return fmt.Errorf("on the CPU: %s", list)
			}
			return nil
		}),
		"slices":  jobscript.Command("NAMESPACE NUMBER", "a namespace holds so many slices", func(args []string) error { return jobscript.Compared("slices of "+args[0], s.used(args[0]), args[1]) }),
		"started": jobscript.Command("NUMBER", "so many allocs were started since the mark", func(args []string) error { return jobscript.Compared("started", s.modelRun.started-s.started, args[0]) }),
		"registered": jobscript.Command("JOB NUMBER", "a job has so many versions", s.each(func(name string, j *modelJob, more []string) error {
			return jobscript.Compared("versions of "+name, len(j.versions), more[0])
		})),
		"above": jobscript.Command("NUMBER", "for so many seconds queue a was above its bound without a break", func(args []string) error { return jobscript.Compared("seconds above the bound", s.longest, args[0]) }),
		"evicted": jobscript.Command("JOB NUMBER [NODE]", "so many allocs were evicted for a job", func(args []string) error {
			return jobscript.Compared("evicted for "+args[0], s.evictions(args[0], strings.Join(args[2:], "")), args[1])
		}),
		"said": jobscript.Command("NUMBER PATTERN", "so many lines of the audit match", func(args []string) error {
			pattern, err := regexp.Compile(args[1])
			if err != nil {
				return err
			}
			n := 0
			for _, line := range s.log {
				if pattern.MatchString(line) {
					n++
				}
			}
			return jobscript.Compared("lines with "+args[1], n, args[0])
		}),
		"constraints": jobscript.Printing("JOB", "print the constraints of a job's first group", func(args []string) (string, error) {
			j, err := s.jobOf(args[0])
			if err != nil {
				return "", err
			}
			return strings.Join(constraintsOf(j.job.TaskGroups[0]), "\n") + "\n", nil
		}),
		"told": jobscript.Printing("JOB", "print what people are told of a job that waits", func(args []string) (string, error) {
			for _, p := range s.shown().Pending {
				if p.Namespace+"/"+p.JobID == args[0] {
					text, err := json.MarshalIndent(p, "", " ")
					return string(text), err
				}
			}
			return "", fmt.Errorf("%s does not wait", args[0])
		}),
	}
}

func atoi(t *testing.T, text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (s *scripted) turn(name, to string) error {
	n, err := s.named(name)
	if err == nil {
		s.setEligibility(n, to)
	}
	return err
}

// changes changes the node that the first argument names.
func (s *scripted) changes(how func(n *api.Node, more []string)) func(args []string) error {
	return func(args []string) error {
		n, err := s.named(args[0])
		if err == nil {
			how(n, args[1:])
			s.show(s.believed)
		}
		return err
	}
}

// oldest does something with the oldest alloc of a job that does not stop.
func (s *scripted) oldest(do func(*modelAlloc)) func(name string, j *modelJob, _ []string) error {
	return func(name string, j *modelJob, _ []string) error {
		list := s.staying(j)
		if len(list) == 0 {
			return fmt.Errorf("nothing of %s runs", name)
		}
		do(list[0])
		return nil
	}
}

func (s *scripted) dispatches(_ string, j *modelJob, more []string) error {
	priority := *j.job.Priority
	if len(more) > 1 {
		priority = atoi(s.t, more[1])
	}
	s.dispatch(j.key, more[0], priority)
	return nil
}

func (s *scripted) completes(name string, j *modelJob, _ []string) error {
	if s.finish(j); !j.ended {
		return fmt.Errorf("not all of %s runs", name)
	}
	return nil
}
