// SPDX-License-Identifier: MPL-2.0

package mpsctl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// MPS v3 is asked with arguments: nvidia-cuda-mps-control <module> <verb> …. A daemon has
// named servers, and these have namespaces with limits of their own. The commands here are on
// NVIDIA's pages of 615 (docs.nvidia.com/deploy/mps/615/mpsv3-interface.html); those do not
// say how an error is told, so that every change is read back.

// V3 is a daemon of protocol 3.
type V3 struct{ Control }

// ErrInUse means that an object of the daemon has clients, which keep it as it is.
var ErrInUse = errors.New("programs use it")

// Limits are what the programs of a namespace may have.
type Limits struct {
	// MemoryMiB is for each program, 0 for no limit. Percent is of the multiprocessors, for
	// each too, from 1 to 100.
	MemoryMiB int64
	Percent   int
	// BelowNormal programs go behind the others; they may say otherwise.
	BelowNormal bool
}

// Client is a program that a server serves.
type Client struct {
	PID       int
	Namespace string
}

// Detect asks a control program, without a daemon, whether it has protocol 3. Others take
// the question for a mistake, or for a wish to ask a daemon.
func Detect(ctx context.Context, program string, c Control) (bool, error) {
	c.PipeDir = "/nonexistent"
	answer, err := c.Run(ctx, program, []string{"-p", "3", "-h"}, "", &syscall.SysProcAttr{Setsid: true})
	if errors.Is(err, ErrTimeout) || ctx.Err() != nil {
		return false, err
	}
	words := strings.FieldsFunc(answer, func(r rune) bool { return strings.ContainsRune(" \n\t,:<>|[]", r) })
	return slices.Contains(words, "server") && slices.Contains(words, "namespace"), nil
}

// Do carries out one command and returns what the program prints.
func (c V3) Do(ctx context.Context, words ...string) (string, error) {
	lock, err := c.lock(ctx)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	answer, err := c.Run(ctx, c.Program, append([]string{"-p", "3"}, words...), "", &syscall.SysProcAttr{Setsid: true})
	answer = strings.TrimSpace(answer)
	switch {
	case err != nil && ctx.Err() == nil && strings.Contains(answer, "active client"):
		err = fmt.Errorf("%w: %s", ErrInUse, FirstLine(answer))
	case err != nil && answer != "":
		err = fmt.Errorf("%w: %s", err, FirstLine(answer))
	}
	if err != nil {
		return answer, fmt.Errorf("ask MPS control daemon %q: %w", strings.Join(words, " "), err)
	}
	return answer, nil
}

// rows are the lines of a list, whose columns have no commas but in the last.
func (c V3) rows(ctx context.Context, least int, words ...string) ([][]string, error) {
	answer, err := c.Do(ctx, append(words, "--format=csv,noheader")...)
	if err != nil {
		return nil, err
	}
	var all [][]string
	for line := range strings.Lines(answer) {
		row := strings.Split(strings.TrimSpace(line), ",")
		if len(row) < least {
			return nil, fmt.Errorf("ask MPS control daemon %q: line %q has %d columns, not %d", strings.Join(words, " "), strings.TrimSpace(line), len(row), least)
		}
		all = append(all, row)
	}
	return all, nil
}

// Server is the process ID of a server and its state, such as "Ready"; 0 for one that is
// not there. Servers that cannot start are not.
func (c V3) Server(ctx context.Context, name string) (pid int, state string, err error) {
	rows, err := c.rows(ctx, 4, "server", "list")
	if err != nil {
		return 0, "", err
	}
	for _, row := range rows {
		if row[0] != name {
			continue
		}
		if pid, err = strconv.Atoi(row[2]); err != nil || pid <= 1 {
			return 0, "", fmt.Errorf("MPS server %s: %q is not a process ID", name, row[2])
		}
		return pid, row[3], nil
	}
	return 0, "", nil
}

// Namespaces are the names of a server's.
func (c V3) Namespaces(ctx context.Context, server string) ([]string, error) {
	rows, err := c.rows(ctx, 1, "namespace", "list", "--server="+server)
	var names []string
	for _, row := range rows {
		names = append(names, row[0])
	}
	return names, err
}

// Open makes a namespace, if it is not there, and gives it its limits. It returns only
// when the daemon says that it has them.
func (c V3) Open(ctx context.Context, server, name string, l Limits) error {
	wrong, err := c.differs(ctx, server, name, l)
	if errors.Is(err, errNoNamespace) {
		if _, err := c.Do(ctx, "namespace", "create", name, "--server="+server); err != nil {
			return err
		}
		wrong, err = missing(l, "", "", ""), nil
	}
	if err != nil {
		return err
	}
	return c.set(ctx, server, name, l, wrong)
}

// Limit gives a namespace other limits. ErrInUse says that it has programs, and that the
// daemon changes nothing meanwhile.
func (c V3) Limit(ctx context.Context, server, name string, l Limits) error {
	wrong, err := c.differs(ctx, server, name, l)
	if err != nil {
		return err
	}
	return c.set(ctx, server, name, l, wrong)
}

// set gives a namespace the options that its limits miss.
func (c V3) set(ctx context.Context, server, name string, l Limits, options []string) error {
	if len(options) == 0 {
		return nil
	}
	if _, err := c.Do(ctx, append([]string{"namespace", "set", name, "--server=" + server}, options...)...); err != nil {
		return err
	}
	wrong, err := c.differs(ctx, server, name, l)
	if err == nil && len(wrong) > 0 {
		err = fmt.Errorf("namespace %s of MPS server %s: the daemon took its limits and has others (%s)", name, server, strings.Join(wrong, " "))
	}
	return err
}

// Confirm asks whether a namespace has its limits.
func (c V3) Confirm(ctx context.Context, server, name string, l Limits) error {
	wrong, err := c.differs(ctx, server, name, l)
	if err == nil && len(wrong) > 0 {
		err = fmt.Errorf("namespace %s of MPS server %s has other limits than it was given (%s)", name, server, strings.Join(wrong, " "))
	}
	return err
}

var errNoNamespace = errors.New("the MPS server has no such namespace")

// differs are the options that would give a namespace its missing limits. The list has them
// as columns: name, server, its state, memory, percentage, priority, directory.
func (c V3) differs(ctx context.Context, server, name string, l Limits) (options []string, err error) {
	rows, err := c.rows(ctx, 7, "namespace", "list", "--server="+server)
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		if row[0] == name {
			return missing(l, row[3], row[4], row[5]), nil
		}
	}
	return nil, fmt.Errorf("namespace %s of MPS server %s: %w", name, server, errNoNamespace)
}

func missing(l Limits, memory, percentage, priority string) (options []string) {
	if l.MemoryMiB > 0 && !SameMemory(memory, l.MemoryMiB) {
		options = append(options, fmt.Sprintf("--pinned-memory-limit=%dM", l.MemoryMiB))
	}
	percent, err := strconv.ParseFloat(strings.TrimSuffix(percentage, "%"), 64)
	if l.Percent > 0 && (err != nil || int(percent+0.5) != l.Percent) {
		options = append(options, fmt.Sprintf("--active-thread-percentage=%d", l.Percent))
	}
	want := "0"
	if l.BelowNormal {
		want = "1"
	}
	if priority != want && (l.BelowNormal || priority == "1") {
		options = append(options, "--client-priority="+want)
	}
	return options
}

// Close removes a namespace; one that is not there is removed already. ErrInUse says that
// it has programs still.
func (c V3) Close(ctx context.Context, server, name string) error {
	names, err := c.Namespaces(ctx, server)
	if err != nil || !slices.Contains(names, name) {
		return err
	}
	if _, err := c.Do(ctx, "namespace", "delete", name, "--server="+server); err != nil {
		return err
	}
	if names, err = c.Namespaces(ctx, server); err == nil && slices.Contains(names, name) {
		err = fmt.Errorf("namespace %s of MPS server %s: %w", name, server, ErrInUse)
	}
	return err
}

// Programs are those that a server serves, by the host's process IDs.
func (c V3) Programs(ctx context.Context, server string) ([]Client, error) {
	rows, err := c.rows(ctx, 4, "client", "list", "--server="+server)
	if err != nil {
		return nil, err
	}
	var all []Client
	for _, row := range rows {
		pid, err := strconv.Atoi(row[0])
		if err != nil || pid <= 1 {
			return nil, fmt.Errorf("ask MPS control daemon for its clients: %q is not a process ID", row[0])
		}
		all = append(all, Client{pid, row[3]})
	}
	return all, nil
}

// End ends the GPU work of one program; its later calls fail.
func (c V3) End(ctx context.Context, pid int) error {
	_, err := c.Do(ctx, "client", "terminate", strconv.Itoa(pid))
	return err
}

// Multiprocessors are how many the daemon's device has, and of how many chunks it is.
func (c V3) Multiprocessors(ctx context.Context) (multiprocessors, chunks int, err error) {
	rows, err := c.rows(ctx, 8, "device", "list")
	if err != nil {
		return 0, 0, err
	}
	if len(rows) == 0 {
		return 0, 0, errors.New("ask MPS control daemon for its devices: it has none")
	}
	multiprocessors, err1 := strconv.Atoi(rows[0][5])
	chunks, err2 := strconv.Atoi(rows[0][6])
	if err := errors.Join(err1, err2); err != nil {
		return 0, 0, fmt.Errorf("ask MPS control daemon for its devices: %w", err)
	}
	return multiprocessors, chunks, nil
}

// LimitsOf are those of a share: 0 is no limit.
func LimitsOf(memoryMiB, limitMilli int64, multiprocessors int) Limits {
	l := Limits{MemoryMiB: memoryMiB}
	if limitMilli > 0 {
		l.Percent = PercentFor(limitMilli, multiprocessors)
	}
	return l
}

// PercentFor is the percentage that gives a program at least its thousandths of a device's
// multiprocessors. A daemon rounds down to two of them (measured by Dynamo on 615: 25 % of
// 188 gives 46), so the percentage is rounded up to the next two.
func PercentFor(milli int64, multiprocessors int) int {
	if multiprocessors <= 0 {
		return int(min(100, (milli+9)/10))
	}
	need := (milli*int64(multiprocessors) + 999) / 1000
	need += need % 2
	return int(min(100, max(1, (need*100+int64(multiprocessors)-1)/int64(multiprocessors))))
}
