// SPDX-License-Identifier: MPL-2.0

// Package jobscript has what scripts about jobs have in common, whether a model of Nomad or a real one
// plays them: their files, the words that describe a job, and how numbers are compared.
//
// Each file is about one promise, which its first line says. What stands before the first case begins every
// case. A line "for NAME: one | two" there runs each case with each of the values as $NAME. Files that end in
// .hcl are configurations.
package jobscript

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"rsc.io/script"
)

// File is a script.
type File struct {
	Name, Path string
	Begins     string            // every case
	Configs    map[string]string // by name
	Cases      []txtar.File      // name and commands
	Values     [][]string        // the sets of variables, as NAME=VALUE, that each case has; one is empty
}

// Files reads the scripts that match a pattern. There must be one.
func Files(t *testing.T, pattern string) (files []File) {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("%d scripts match %s, %v", len(paths), pattern, err)
	}
	for _, path := range paths {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(archive.Comment, []byte("# ")) {
			t.Fatalf("%s: its first line is not a promise", path)
		}
		f := File{Name: strings.TrimSuffix(filepath.Base(path), ".txt"), Path: path, Configs: map[string]string{}}
		f.Values, f.Begins = valuesOf(archive.Comment)
		for _, one := range archive.Files {
			if strings.HasSuffix(one.Name, ".hcl") {
				f.Configs[one.Name] = string(one.Data)
			} else {
				f.Cases = append(f.Cases, one)
			}
		}
		if len(f.Cases) == 0 {
			t.Fatalf("%s has no case", path)
		}
		files = append(files, f)
	}
	return files
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

// Run runs every case with every set of values, each as a test.
func (f File) Run(t *testing.T, run func(t *testing.T, set []string, text string)) {
	for _, one := range f.Cases {
		for _, set := range f.Values {
			t.Run(strings.TrimSpace(one.Name+" "+strings.Join(set, " ")), func(t *testing.T) {
				run(t, set, f.Begins+string(one.Data))
			})
		}
	}
}

// Execute executes the commands of a text. The error has the log of the commands before it.
func (f File) Execute(t *testing.T, commands map[string]script.Cmd, set []string, text string) error {
	state, err := script.NewState(t.Context(), t.TempDir(), set)
	if err != nil {
		return err
	}
	defaults := script.DefaultCmds()
	commands = maps.Clone(commands)
	for _, name := range []string{"stdout", "stderr"} {
		commands[name] = defaults[name]
	}
	var log strings.Builder
	engine := &script.Engine{Cmds: commands, Conds: map[string]script.Cond{}}
	if err := engine.Execute(state, filepath.Base(f.Path), bufio.NewReader(strings.NewReader(text)), &log); err != nil {
		return fmt.Errorf("%s%w", log.String(), err)
	}
	return nil
}

// Command makes a command of a function of its arguments.
func Command(args, summary string, do func(args []string) error) script.Cmd {
	return script.Command(script.CmdUsage{Args: args, Summary: summary}, func(_ *script.State, given ...string) (script.WaitFunc, error) {
		least := len(strings.Fields(args)) - strings.Count(args, "[")
		if len(given) < least {
			return nil, script.ErrUsage
		}
		return nil, do(given)
	})
}

// Printing makes a command whose text stdout looks at.
func Printing(args, summary string, text func(args []string) (string, error)) script.Cmd {
	return script.Command(script.CmdUsage{Args: args, Summary: summary}, func(_ *script.State, given ...string) (script.WaitFunc, error) {
		said, err := text(given)
		return func(*script.State) (string, string, error) { return said, "", err }, nil
	})
}

// Compared is an error where a number is not the wanted one: 3, or <=3.
func Compared(what string, n int, with string) error {
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

// Names are those that a pattern as c/low{0-3} stands for.
func Names(pattern string) (list []string, err error) {
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

// Jobs does something with each job that arguments as c/low{0-3} gpu=1 describe. Fields of a task that they
// leave out are those of the given one.
func Jobs(task map[string]any, args []string, do func(job json.RawMessage) error) error {
	list, err := Names(args[0])
	for _, name := range list {
		job, err := jobFrom(task, name, args[1:])
		if err == nil {
			err = do(job)
		}
		if err != nil {
			return err
		}
	}
	return err
}

// jobFrom is the job that words as "gpu=1 count=2" describe: what begins with gpu is metadata of its task,
// task=, group= and job= are more JSON of each.
func jobFrom(like map[string]any, name string, words []string) (json.RawMessage, error) {
	namespace, id, is := strings.Cut(name, "/")
	if !is {
		return nil, fmt.Errorf("job %q is not valid (NAMESPACE/ID)", name)
	}
	task := map[string]any{"Name": "t", "Meta": map[string]string{}, "Env": map[string]string{"V": "0"}, "Resources": map[string]any{"CPU": 100, "MemoryMB": 100}}
	maps.Copy(task, like)
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
		case key == "task":
			err = json.Unmarshal([]byte("{"+value+"}"), &task)
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
