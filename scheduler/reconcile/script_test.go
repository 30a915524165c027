// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/tools/txtar"
	"rsc.io/script"

	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// TestScripts runs testdata/script: each file is about one promise, which its first line says. What
// stands before the first case begins every case. A line "for NAME: one | two" there runs each case
// with each of the values as $NAME. Files that end in .hcl are configurations. The commands are in
// scriptCommands. At its end each case has a minute without events; then the oracle of the random
// histories must have nothing to say, and nothing may have waited in Nomad that could start at any time.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/script/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d scripts, %v", len(files), err)
	}
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.HasPrefix(archive.Comment, []byte("# ")) {
				t.Fatalf("%s: its first line is not a promise", path)
			}
			sets, begins := valuesOf(archive.Comment)
			configs, cases := map[string]string{"model.hcl": modelConfig, "evict.hcl": noMinimum, "fair.hcl": fmt.Sprintf(fairConfig, 4, 4)}, 0
			for _, f := range archive.Files {
				if strings.HasSuffix(f.Name, ".hcl") {
					configs[f.Name] = string(f.Data)
				}
			}
			for _, f := range archive.Files {
				if strings.HasSuffix(f.Name, ".hcl") {
					continue
				}
				cases++
				for _, set := range sets {
					t.Run(strings.TrimSpace(f.Name+" "+strings.Join(set, " ")), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							(&scripted{t: t, configs: configs}).run(filepath.Base(path), set, begins+string(f.Data))
						})
					})
				}
			}
			if cases == 0 {
				t.Fatalf("%s has no case", path)
			}
		})
	}
}

// valuesOf takes the lines "for" out of what begins every case, and gives the combinations of their values.
func valuesOf(comment []byte) (sets [][]string, begins string) {
	sets = [][]string{nil}
	for line := range strings.Lines(string(comment)) {
		name, values, is := strings.Cut(strings.TrimPrefix(line, "for "), ":")
		if !is || !strings.HasPrefix(line, "for ") {
			begins += line
			continue
		}
		var all [][]string
		for _, set := range sets {
			for value := range strings.SplitSeq(values, " | ") {
				all = append(all, append(slices.Clone(set), name+"="+strings.TrimSpace(value)))
			}
		}
		sets = all
	}
	return sets, begins
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

func (s *scripted) run(file string, set []string, text string) {
	state, err := script.NewState(s.t.Context(), s.t.TempDir(), set)
	if err != nil {
		s.t.Fatal(err)
	}
	var log strings.Builder
	engine := &script.Engine{Cmds: s.scriptCommands(), Conds: map[string]script.Cond{}}
	err = engine.Execute(state, file, bufio.NewReader(strings.NewReader(text)), &log)
	if err == nil && s.modelRun != nil && !s.odd {
		s.pause(60)
		s.settled()
	}
	if s.modelRun != nil && (err != nil || s.t.Failed()) {
		s.t.Log(strings.Join(s.log, "\n"))
	}
	if err != nil {
		s.t.Fatalf("%s%v", log.String(), err)
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

// names are those that a pattern as c/low{0-3} stands for.
func names(pattern string) (list []string, err error) {
	before, rest, is := strings.Cut(pattern, "{")
	if !is {
		return []string{pattern}, nil
	}
	numbers, after, _ := strings.Cut(rest, "}")
	from, to, _ := strings.Cut(numbers, "-")
	first, err := strconv.Atoi(from)
	last, err2 := strconv.Atoi(to)
	if err := errors.Join(err, err2); err != nil {
		return nil, fmt.Errorf("%s: %w", pattern, err)
	}
	for i := first; i <= last; i++ {
		list = append(list, fmt.Sprint(before, i, after))
	}
	return list, nil
}

// jobFrom is the job that words as "gpu=1 count=2" describe: what begins with gpu is metadata of its task,
// group= and job= are more JSON of either.
func jobFrom(name string, words []string) (json.RawMessage, error) {
	namespace, id, is := strings.Cut(name, "/")
	if !is {
		return nil, fmt.Errorf("job %q is not valid (NAMESPACE/ID)", name)
	}
	task := map[string]any{"Name": "t", "Driver": "docker", "Meta": map[string]string{}, "Env": map[string]string{"V": "0"}, "Resources": map[string]any{"CPU": 100, "MemoryMB": 100}}
	group := map[string]any{"Name": "g", "Count": 1}
	job := map[string]any{"ID": id, "Name": id, "Namespace": namespace, "Type": "batch", "Priority": 50, "Datacenters": []string{"*"}}
	groups := map[string]int{}
	for i := 0; i < len(words); i++ {
		if several := strings.Fields(words[i]); len(several) > 1 && !strings.Contains(words[i], `"`) { // a value of "for"
			words = slices.Concat(words[:i], several, words[i+1:])
		}
		word := words[i]
		key, value, _ := strings.Cut(word, "=")
		n, err := strconv.Atoi(value)
		switch {
		case strings.HasPrefix(key, "gpu"):
			task["Meta"].(map[string]string)[key], err = value, nil
		case key == "slices": // without the service
			task["Resources"].(map[string]any)["Devices"] = []any{map[string]any{"Name": "nvidia/slice", "Count": n}}
		case key == "priority":
			job["Priority"] = n
		case key == "count":
			group["Count"] = n
		case key == "type":
			job["Type"], err = value, nil
		case key == "pool":
			job["NodePool"], err = value, nil
		case key == "v":
			task["Env"], err = map[string]string{"V": value}, nil
		case key == "canary":
			group["Update"] = map[string]any{"Canary": n, "MaxParallel": 1}
		case key == "on":
			group["Constraints"], err = []any{map[string]string{"LTarget": "${node.unique.name}", "Operand": "=", "RTarget": value}}, nil
		case key == "group":
			err = json.Unmarshal([]byte("{"+value+"}"), &group)
		case key == "job":
			err = json.Unmarshal([]byte("{"+value+"}"), &job)
		case key == "groups": // as g:2,h:1
			err = nil
			for one := range strings.SplitSeq(value, ",") {
				called, count, _ := strings.Cut(one, ":")
				if groups[called], err = strconv.Atoi(count); err != nil {
					break
				}
			}
		default:
			err = errors.New("no such word")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", word, err)
		}
	}
	group["Tasks"] = []any{task}
	var list []any
	for _, called := range slices.Sorted(maps.Keys(groups)) {
		one := maps.Clone(group)
		one["Name"], one["Count"] = called, groups[called]
		list = append(list, one)
	}
	if list == nil {
		list = append(list, group)
	}
	job["TaskGroups"] = list
	return json.Marshal(job)
}

// jobsFrom does something with each job that the arguments describe.
func jobsFrom(args []string, do func(job json.RawMessage) error) error {
	list, err := names(args[0])
	for _, name := range list {
		job, err := jobFrom(name, args[1:])
		if err == nil {
			err = do(job)
		}
		if err != nil {
			return err
		}
	}
	return err
}

// command makes one of a script of what it does with its arguments.
func command(args, summary string, do func(args []string) error) script.Cmd {
	return script.Command(script.CmdUsage{Args: args, Summary: summary}, func(_ *script.State, given ...string) (script.WaitFunc, error) {
		least := len(strings.Fields(args)) - strings.Count(args, "[")
		if len(given) < least {
			return nil, script.ErrUsage
		}
		return nil, do(given)
	})
}

// printing makes one whose text stdout looks at.
func printing(args, summary string, text func(args []string) (string, error)) script.Cmd {
	return script.Command(script.CmdUsage{Args: args, Summary: summary}, func(_ *script.State, given ...string) (script.WaitFunc, error) {
		said, err := text(given)
		return func(*script.State) (string, string, error) { return said, "", err }, nil
	})
}

// compared is an error where n is not as wanted: 3, or <=3.
func compared(what string, n int, with string) error {
	digits := strings.TrimLeft(with, "<>=")
	limit, err := strconv.Atoi(digits)
	if err != nil {
		return fmt.Errorf("number %q: %w", with, err)
	}
	switch operator := strings.TrimSuffix(with, digits); {
	case operator == "" && n == limit, operator == "<=" && n <= limit, operator == ">=" && n >= limit:
		return nil
	}
	return fmt.Errorf("%s: %d, want %s", what, n, with)
}

// each does something with every job that the first argument names.
func (s *scripted) each(do func(name string, j *modelJob, more []string) error) func(args []string) error {
	return func(args []string) error {
		list, err := names(args[0])
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
	defaults := script.DefaultCmds()
	return map[string]script.Cmd{
		"stdout": defaults["stdout"],
		"cluster": command("MACHINESxGPUS [CONFIG]", "start the service beside Nomad, with GPUs of 16 slices", func(args []string) error {
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
		"submit": command("JOB [WORD=VALUE...]", "have the service admit a job, and Nomad run it", func(args []string) error {
			return jobsFrom(args, func(job json.RawMessage) error {
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
		"register": command("JOB [WORD=VALUE...]", "give Nomad a job around the service", func(args []string) error {
			return jobsFrom(args, func(job json.RawMessage) error { s.register(job); return nil })
		}),
		"revert": command("JOB VERSION", "have Nomad run a former version, around the service", s.each(func(_ string, j *modelJob, more []string) error {
			version, err := strconv.Atoi(more[0])
			if err == nil {
				s.register(j.versions[version])
			}
			return err
		})),
		"stop":     command("JOB", "stop a job", s.each(func(_ string, j *modelJob, _ []string) error { s.stop(j); return nil })),
		"purge":    command("JOB", "purge a job", s.each(func(_ string, j *modelJob, _ []string) error { s.purge(j); return nil })),
		"complete": command("JOB", "have all of a batch job end by itself", s.each(s.completes)),
		"kill":     command("JOB", "kill the oldest alloc of a job: Nomad starts another", s.each(s.oldest(func(a *modelAlloc) { s.kill(a) }))),
		"crash":    command("JOB", "have the oldest alloc of a job fail: Nomad starts another after a while", s.each(s.oldest(func(a *modelAlloc) { s.crash(a) }))),
		"end-one":  command("JOB", "have the oldest alloc of a batch job complete", s.each(s.oldest(func(a *modelAlloc) { s.complete(a) }))),
		"lose": command("JOB", "kill the oldest alloc of a job, whose node takes no new work", s.each(s.oldest(func(a *modelAlloc) {
			s.setEligibility(s.node(a.stub.NodeID), "ineligible")
			s.kill(a)
		}))),
		"end-on": command("NODE", "have the allocs of batch jobs on a node complete", func(args []string) error {
			for _, a := range slices.Clone(s.allocs) {
				if a.stub.NodeName == args[0] && *s.jobs[a.stub.Namespace+"/"+a.stub.JobID].job.Type == "batch" {
					s.complete(a)
				}
			}
			return nil
		}),
		"promote": command("JOB", "promote the canaries of a job", s.each(func(_ string, j *modelJob, _ []string) error { s.promote(j); return nil })),
		"scale": printing("JOB GROUP COUNT", "scale a group through the service, and print whether it has to wait", func(args []string) (string, error) {
			j, err := s.jobOf(args[0])
			if err != nil {
				return "", err
			}
			if s.scaleGroup(s.t, j.key, args[1], atoi(s.t, args[2])) {
				return "held\n", nil
			}
			return "let go\n", nil
		}),
		"forget":   command("", "lose all that the service has stored", func([]string) error { clear(s.store.Items); return nil }),
		"join":     command("POOL MODEL", "add a node with two GPUs of a model to a pool", func(args []string) error { s.join(args[0], args[1]); return nil }),
		"rescale":  command("JOB COUNT", "scale a job around the service", s.each(func(_ string, j *modelJob, more []string) error { s.scale(j, atoi(s.t, more[0])); return nil })),
		"dispatch": command("PARENT CHILD [PRIORITY]", "dispatch a child around the service", s.each(s.dispatches)),
		"launch":   command("PARENT CHILD", "have a periodic job start a child", s.each(func(_ string, j *modelJob, more []string) error { s.launch(j.key, more[0]); return nil })),
		"slow":     command("JOB-ID SECONDS", "have the allocs of a job take long to stop", func(args []string) error { s.stops[args[0]] = atoi(s.t, args[1]); return nil }),
		"refuse": command("JOB all|NODE|except [NODE]", "have Nomad start a job nowhere, not on a node, or on one alone, for a reason that the service does not see", func(args []string) error {
			s.refusals[args[0]] = func(node string) bool {
				return args[1] == "all" || args[1] == node || args[1] == "except" && node != args[2]
			}
			return nil
		}),
		"accept":     command("JOB", "have Nomad refuse a job no more", func(args []string) error { delete(s.refusals, args[0]); return nil }),
		"eligible":   command("NODE", "have a node take work again", func(args []string) error { return s.turn(args[0], "eligible") }),
		"ineligible": command("NODE", "have a node take no new work", func(args []string) error { return s.turn(args[0], "ineligible") }),
		"empty": command("NODE", "have all that runs on a node lost", func(args []string) error {
			for _, a := range s.allocs {
				if a.stub.NodeName == args[0] {
					s.end(a)
					s.noteLost(a)
				}
			}
			return nil
		}),
		"volume": command("NODE NAME [read-only]", "give a node a host volume", s.changes(func(n *api.Node, more []string) {
			n.HostVolumes = map[string]*api.HostVolumeInfo{more[0]: {ReadOnly: len(more) > 1}}
		})),
		"csi": command("NODE PLUGIN", "give a node a CSI plugin", s.changes(func(n *api.Node, more []string) {
			n.CSINodePlugins = map[string]*api.CSIInfo{more[0]: {Healthy: true}}
		})),
		"driver": command("NODE healthy|unhealthy", "give a node a docker driver", s.changes(func(n *api.Node, more []string) {
			n.Drivers = map[string]*api.DriverInfo{"docker": {Detected: true, Healthy: more[0] == "healthy"}}
		})),
		"lead": command("[no]", "have another replica lead, which knows what is stored", func(args []string) error {
			if len(args) == 0 || args[0] != "no" {
				s.lead(s.t.Context())
			}
			return nil
		}),
		"after":    command("SECONDS", "let time go by", func(args []string) error { s.pause(atoi(s.t, args[0])); return nil }),
		"bound":    command("NAMESPACE SLICES", "from now on a namespace must never hold more", func(args []string) error { s.bounds[args[0]] = atoi(s.t, args[1]); return nil }),
		"mark":     command("", "count what is started from now on", func([]string) error { s.started = s.modelRun.started; return nil }),
		"restless": command("REASON", "do not look at the end whether all is in order", func([]string) error { s.odd = true; return nil }),

		"running": command("[JOB...]", "these jobs and no others hold GPUs or run", func(args []string) error {
			if got, want := s.running(), strings.Join(slices.Sorted(slices.Values(args)), " "); got != want {
				return fmt.Errorf("running: %s, want %s", cmp.Or(got, "nothing"), cmp.Or(want, "nothing"))
			}
			return nil
		}),
		"runs": command("JOB [COUNT] [GROUP]", "so many allocs of a job run, or any", s.each(func(name string, j *modelJob, more []string) error {
			count, group := ">=1", ""
			if len(more) > 0 {
				count, group = more[0], strings.Join(more[1:], "")
			}
			return compared("allocs of "+name, s.live(j, group), count)
		})),
		"canaries": command("JOB COUNT", "so many canaries of a job run", s.each(func(name string, j *modelJob, more []string) error {
			_, canaries := s.runsOf(j.key.ID)
			return compared("canaries of "+name, canaries, more[0])
		})),
		"devices": command("JOB COUNT", "a job asks for so many kinds of devices", s.each(func(name string, j *modelJob, more []string) error {
			return compared("devices of "+name, len(j.job.TaskGroups[0].Tasks[0].Resources.Devices), more[0])
		})),
		"on-cpu": command("[JOB...]", "people are told that these jobs run without GPUs", func(args []string) error {
			var list []string
			for _, one := range s.shown().OnCPU {
				list = append(list, one.Namespace+"/"+one.JobID)
			}
			if slices.Sort(list); !slices.Equal(list, slices.Sorted(slices.Values(args))) {
				return fmt.Errorf("on the CPU: %s", list)
			}
			return nil
		}),
		"slices":  command("NAMESPACE NUMBER", "a namespace holds so many slices", func(args []string) error { return compared("slices of "+args[0], s.used(args[0]), args[1]) }),
		"started": command("NUMBER", "so many allocs were started since the mark", func(args []string) error { return compared("started", s.modelRun.started-s.started, args[0]) }),
		"registered": command("JOB NUMBER", "a job has so many versions", s.each(func(name string, j *modelJob, more []string) error {
			return compared("versions of "+name, len(j.versions), more[0])
		})),
		"above": command("NUMBER", "for so many seconds queue a was above its bound without a break", func(args []string) error { return compared("seconds above the bound", s.longest, args[0]) }),
		"evicted": command("JOB NUMBER [NODE]", "so many allocs were evicted for a job", func(args []string) error {
			return compared("evicted for "+args[0], s.evictions(args[0], strings.Join(args[2:], "")), args[1])
		}),
		"promised": command("JOB NUMBER", "so many allocs of a job have room that is promised", s.each(s.promisedTo)),
		"said": command("NUMBER PATTERN", "so many lines of the audit match", func(args []string) error {
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
			return compared("lines with "+args[1], n, args[0])
		}),
		"constraints": printing("JOB", "print the constraints of a job's first group", func(args []string) (string, error) {
			j, err := s.jobOf(args[0])
			if err != nil {
				return "", err
			}
			return strings.Join(constraintsOf(j.job.TaskGroups[0]), "\n") + "\n", nil
		}),
		"told": printing("JOB", "print what people are told of a job that waits", func(args []string) (string, error) {
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

func (s *scripted) promisedTo(name string, j *modelJob, more []string) (err error) {
	s.believed.View(func(r *state.Reader) {
		err = compared("promised to "+name, r.Capacity.Assumed(j.key, "g"), more[0])
	})
	return err
}
