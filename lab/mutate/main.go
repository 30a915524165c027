// SPDX-License-Identifier: MPL-2.0

// Command mutate measures what the tests of a package notice. It draws single
// mutations of the package's code at random (see mutations.go for the kinds), runs
// the package's own tests on each, and says which mutations lived.
//
// The sources are not touched: a mutated file travels to the compiler as an overlay.
// A mutation that does not compile is drawn again. The draw depends on the seed
// alone, so that a survivor can be had again after a test was written for it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

func main() {
	count := flag.Int("n", 24, "how many mutations to try of each package")
	seed := flag.Uint64("seed", 1, "what the draw depends on")
	run := flag.String("run", "", "run these tests only, as in go test -run")
	short := flag.Bool("short", false, "run the short tests only")
	only := flag.String("at", "", "try the mutations at this place alone, as printed: FILE:LINE")
	tests := flag.String("tests", "", "run the tests of this package instead of the mutated one's own")
	byReach := flag.Bool("reach", false, "find out which tests reach which lines, and run those alone")
	known := flag.String("known", "", "the file that keeps what -reach found out, for the next time")
	skip := flag.String("skip", "^$", "with -reach, leave out the tests that match, such as those that take minutes")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: mutate [-n COUNT] [-seed SEED] [-run TESTS] [-short] [-at FILE:LINE] PACKAGE...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	args := []string{"-count=1", "-failfast", "-vet=off"}
	if *run != "" {
		args = append(args, "-run", *run)
	}
	if *short {
		args = append(args, "-short")
	}
	leaveOut, err := regexp.Compile(*skip)
	if err != nil {
		fmt.Fprintf(os.Stderr, "mutate: -skip: %v\n", err)
		os.Exit(2)
	}
	find := func(packages []string, tests string) (*reach, error) {
		return findReach(packages, tests, *known, leaveOut)
	}
	if !*byReach {
		find = nil
	}
	if err := measureAll(flag.Args(), *tests, find, args, draw{*count, *seed, *only}); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

// draw is which mutations are tried: count of them, chosen by seed, or all at one place.
type draw struct {
	count int
	seed  uint64
	only  string
}

// tally counts how the mutations of a package ended.
type tally struct{ tried, killed int }

// noticing runs tests on a mutation.
type noticing func(m mutation, overlay string) result

// measureAll measures packages one after the other, each by its own tests or by those of
// another package, and prints how many mutations were killed. With find, which is nil for
// all tests, those that reach a mutation run.
func measureAll(packages []string, tests string, find func(packages []string, tests string) (*reach, error), args []string, d draw) error {
	var r *reach
	for _, pkg := range packages {
		by := tests
		if by == "" {
			by = pkg
		}
		var err error
		var run noticing
		switch {
		case find == nil:
			run, err = allTests(by, args)
		case r == nil || tests == "":
			r, err = find(packages, by)
			fallthrough
		default:
			run = r.test
		}
		if err != nil {
			return fmt.Errorf("%s: %w", pkg, err)
		}
		tally, err := measure(pkg, run, d)
		if err != nil {
			return fmt.Errorf("%s: %w", pkg, err)
		}
		fmt.Printf("%s: %d of %d killed\n", pkg, tally.killed, tally.tried)
	}
	return nil
}

// allTests runs all tests of a package on each mutation, once they passed without any.
func allTests(tests string, args []string) (noticing, error) {
	began := time.Now()
	if result, output := test(tests, args, "", 30*time.Minute); result != lived {
		return nil, fmt.Errorf("the tests fail without any mutation:\n%s", output)
	}
	// A mutation may make a loop endless: three times the usual is long enough, with
	// room for a compiler on a busy machine.
	patience := 3*time.Since(began) + time.Minute
	return func(_ mutation, overlay string) result {
		result, _ := test(tests, args, overlay, patience)
		return result
	}, nil
}

// measure tries mutations of a package and prints those that the tests miss.
func measure(pkg string, test noticing, d draw) (tally, error) {
	var done tally
	files, err := sources(pkg)
	if err != nil {
		return done, err
	}
	mutations, err := find(files)
	if err != nil {
		return done, err
	}
	random := rand.New(rand.NewPCG(d.seed, 0))
	random.Shuffle(len(mutations), func(i, j int) { mutations[i], mutations[j] = mutations[j], mutations[i] })

	for _, m := range mutations {
		if done.tried == d.count {
			break
		}
		if d.only != "" && m.place() != d.only {
			continue
		}
		overlay, err := m.overlay()
		if err != nil {
			return done, err
		}
		result := test(m, overlay)
		if err := os.RemoveAll(filepath.Dir(overlay)); err != nil {
			return done, err
		}
		switch result {
		case invalid:
			continue
		case killed:
			done.killed++
		case lived:
			fmt.Printf("lived  %s  %s: %s\n", m.place(), m.kind, m.what)
		case unreached:
			fmt.Printf("lived  %s  %s: %s (no test reaches it)\n", m.place(), m.kind, m.what)
		}
		done.tried++
	}
	return done, nil
}

// sources are a package's files as they are built here, without its tests.
func sources(pkg string) ([]string, error) {
	out, err := exec.Command("go", "list", "-json=Dir,GoFiles", pkg).Output()
	if err != nil {
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			err = errors.New(strings.TrimSpace(string(exit.Stderr)))
		}
		return nil, err
	}
	var listed struct {
		Dir     string
		GoFiles []string
	}
	if err := json.Unmarshal(out, &listed); err != nil {
		return nil, fmt.Errorf("read what go list says: %w", err)
	}
	files := make([]string, len(listed.GoFiles))
	for i, name := range listed.GoFiles {
		files[i] = filepath.Join(listed.Dir, name)
	}
	return files, nil
}

// result is what the tests made of a mutation.
type result int

const (
	lived     result = iota // all tests pass: it went unnoticed
	killed                  // a test failed, or did not end
	invalid                 // it does not compile
	unreached               // no test runs it
)

// test runs a package's tests on the sources as the overlay changes them.
func test(pkg string, args []string, overlay string, patience time.Duration) (result, string) {
	// Tests clean up when their own clock ends them; only tests that do not even hear
	// that are ended from outside.
	ctx, cancel := context.WithTimeout(context.Background(), patience+time.Minute)
	defer cancel()
	all := append([]string{"test", "-timeout", patience.String()}, args...)
	if overlay != "" {
		all = append(all, "-overlay", overlay)
	}
	out, err := exec.CommandContext(ctx, "go", append(all, pkg)...).CombinedOutput()
	switch {
	case err == nil:
		return lived, ""
	case strings.Contains(string(out), "[build failed]"), strings.Contains(string(out), "[setup failed]"):
		return invalid, string(out)
	default:
		return killed, string(out)
	}
}
