// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// A package whose tests take minutes is measured by the tests that reach a
// mutation: each test runs alone once, and the compiler's coverage tells which lines it ran.

// reach is what the tests of a package reach of those that are mutated.
type reach struct {
	tests, dir string // the package whose tests run, and where
	// paths are the import paths of packages, by their directories.
	paths  map[string]string
	mu     sync.Mutex // of ByTest
	ByTest map[string]reached
}

// reached is what one test runs, in how long.
type reached struct {
	Seconds float64
	// Lines are first and last lines of blocks, by import path and file.
	Lines map[string][][2]int
}

// findReach runs every test alone, to see which lines of some packages it reaches, and keeps
// the result in file; a test that is there already is not run again, and those that match
// leaveOut are not run at all.
func findReach(packages []string, tests, file string, leaveOut *regexp.Regexp) (*reach, error) {
	r := &reach{tests: tests, ByTest: map[string]reached{}}
	if text, err := os.ReadFile(file); err == nil {
		if err := json.Unmarshal(text, r); err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	out, err := exec.Command("go", append([]string{"list", "-f", "{{.Dir}} {{.ImportPath}}", tests}, packages...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", tests, err)
	}
	r.paths = map[string]string{}
	for line := range strings.Lines(string(out)) {
		dir, importPath, _ := strings.Cut(strings.TrimSpace(line), " ")
		r.paths[dir] = importPath
	}
	if out, err = exec.Command("go", "list", "-f", "{{.Dir}}", tests).Output(); err != nil {
		return nil, fmt.Errorf("find %s: %w", tests, err)
	}
	r.dir = strings.TrimSpace(string(out))
	temp, err := os.MkdirTemp("", "mutate-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temp)
	binary := filepath.Join(temp, "tests")
	if result, output := r.build(binary, "-cover", "-coverpkg="+strings.Join(packages, ",")); result == invalid {
		return nil, errors.New(output)
	}
	list := exec.Command(binary, "-test.list", "^(Test|Fuzz)")
	list.Dir = r.dir
	names, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list the tests of %s: %w", tests, err)
	}
	unknown := slices.DeleteFunc(strings.Fields(string(names)), func(name string) bool {
		_, known := r.ByTest[name]
		return known || leaveOut.MatchString(name)
	})
	group := errgroup.Group{}
	group.SetLimit(profilers)
	for _, name := range unknown {
		group.Go(func() error { return r.profile(binary, name, filepath.Join(temp, name), file) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return r, nil
}

// profilers is how many tests are looked at beside each other: most of those that take
// long wait.
const profilers = 4

// profile runs one test and adds its lines, also to file. One that fails is named
// and left out.
func (r *reach) profile(binary, name, profile, file string) error {
	began := time.Now()
	if result, output := r.run(binary, []string{name}, 10*time.Minute, "-test.coverprofile="+profile); result != lived {
		fmt.Printf("left out  %s, which fails without any mutation: %.200s\n", name, output)
		return nil
	}
	lines, err := coveredLines(profile)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ByTest[name] = reached{Seconds: time.Since(began).Seconds(), Lines: lines}
	if file == "" {
		return nil
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

// coveredLines reads a profile of the compiler's: FILE:LINE.COLUMN,LINE.COLUMN STATEMENTS COUNT.
func coveredLines(profile string) (map[string][][2]int, error) {
	f, err := os.Open(profile)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := map[string][][2]int{}
	for scanner := bufio.NewScanner(f); scanner.Scan(); {
		fields := block.FindStringSubmatch(scanner.Text())
		if fields == nil || fields[4] == "0" {
			continue
		}
		first, errFirst := strconv.Atoi(fields[2])
		last, errLast := strconv.Atoi(fields[3])
		if err := errors.Join(errFirst, errLast); err != nil {
			return nil, fmt.Errorf("read %s: %w", profile, err)
		}
		lines[fields[1]] = append(lines[fields[1]], [2]int{first, last})
	}
	return lines, nil
}

var block = regexp.MustCompile(`^(.+):(\d+)\.\d+,(\d+)\.\d+ \d+ (\d+)$`)

// testsOf are the tests that reach a mutation, the quickest first. A constant is reached
// by whatever reaches its package.
func (r *reach) testsOf(m mutation) []string {
	pkg := r.paths[filepath.Dir(m.file)]
	reaches := func(of reached) bool {
		return slices.ContainsFunc(of.Lines[path.Join(pkg, filepath.Base(m.file))], func(b [2]int) bool { return b[0] <= m.runs && m.runs <= b[1] })
	}
	if m.declared {
		reaches = func(of reached) bool {
			for file := range of.Lines {
				if path.Dir(file) == pkg {
					return true
				}
			}
			return false
		}
	}
	var names []string
	for name, of := range r.ByTest {
		if reaches(of) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		if d := r.ByTest[a].Seconds - r.ByTest[b].Seconds; d != 0 {
			return int(d / max(d, -d))
		}
		return strings.Compare(a, b)
	})
	return names
}

// firstTests is how many tests run before all others: a mistake in what everything uses
// is noticed by the quickest of them.
const firstTests = 8

// test runs the tests that reach a mutation.
func (r *reach) test(m mutation, overlay string) result {
	names := r.testsOf(m)
	if len(names) == 0 {
		return unreached
	}
	binary := filepath.Join(filepath.Dir(overlay), "tests")
	if result, _ := r.build(binary, "-overlay", overlay); result == invalid {
		return invalid
	}
	first := min(firstTests, len(names))
	for _, some := range [][]string{names[:first], names[first:]} {
		seconds := 0.0
		for _, name := range some {
			seconds += r.ByTest[name].Seconds
		}
		patience := time.Duration(3*seconds)*time.Second + 2*time.Minute
		if len(some) == 0 {
			continue
		}
		if result, _ := r.run(binary, some, patience); result != lived {
			return result
		}
	}
	return lived
}

// build makes the program of the tests.
func (r *reach) build(binary string, args ...string) (result, string) {
	all := append([]string{"test", "-c", "-vet=off", "-o", binary}, args...)
	if out, err := exec.Command("go", append(all, r.tests)...).CombinedOutput(); err != nil {
		return invalid, string(out)
	}
	return lived, ""
}

// run runs some tests, until one fails.
func (r *reach) run(binary string, names []string, patience time.Duration, args ...string) (result, string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience+time.Minute)
	defer cancel()
	pattern := "^(" + strings.Join(names, "|") + ")$"
	cmd := exec.CommandContext(ctx, binary, append([]string{"-test.run", pattern, "-test.failfast", "-test.timeout", patience.String()}, args...)...)
	cmd.Dir = r.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return killed, string(out)
	}
	return lived, ""
}
