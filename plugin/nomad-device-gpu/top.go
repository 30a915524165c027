// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/inventory"
	"github.com/nomad-gpu/nomad-gpu/internal/command"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/terminal"
)

const topHelp = `Shows this machine's GPUs and MIG instances as they are now: memory, utilization,
temperature and power, the instances that tasks hold, the MPS daemons, and the
tasks of the containerd driver with what they use. FILE is a configuration, as for
inventory. Run it as root: the running plugin's and driver's files are root's.

On a terminal it is drawn anew until q or Ctrl-C is pressed, elsewhere it is printed
once. It changes nothing.`

// topOptions are the options of top.
type topOptions struct {
	interval     time.Duration
	once, asJSON bool
	colored      bool
}

func runTop(args []string, stdout, stderr io.Writer) int {
	var o topOptions
	fs := newFlags("top [FILE]", topHelp, stderr)
	fs.DurationVar(&o.interval, "interval", 2*time.Second, "how often to look, at least 100ms")
	fs.BoolVar(&o.once, "once", false, "print it once, on a terminal too")
	fs.BoolVar(&o.asJSON, "json", false, "print JSON, once")
	noColor := fs.Bool("no-color", false, "no colors; NO_COLOR says the same")
	if code, done := command.ParseArguments(fs, args, 0, 1, stdout); done {
		return code
	}
	if o.interval < 100*time.Millisecond {
		fmt.Fprintf(stderr, "-interval %s is not valid (100ms or more)\n", o.interval)
		return command.ExitUsage
	}
	o.colored = terminal.Colored(stdout, *noColor)
	top, err := inventory.OpenTop(fs.Arg(0))
	if err != nil {
		return fail(stderr, err)
	}
	defer top.Close()
	if out := terminal.File(stdout); terminal.Is(stdout) && terminal.Is(os.Stdin) && !o.once && !o.asJSON {
		err = terminal.Watch(context.Background(), os.Stdin, out, o.interval, func(w io.Writer) { o.draw(w, top) })
	} else {
		err = o.print(stdout, top)
	}
	if err != nil {
		return fail(stderr, err)
	}
	return command.ExitOK
}

// print writes one look.
func (o topOptions) print(w io.Writer, top *inventory.Top) error {
	v, err := top.Look()
	if err != nil {
		return err
	}
	if o.asJSON {
		return terminal.JSON(w, v)
	}
	return renderTop(w, v, o.colored)
}

// draw writes one look, or why there is none: the next may succeed.
func (o topOptions) draw(w io.Writer, top *inventory.Top) {
	if err := o.print(w, top); err != nil {
		fmt.Fprintln(w, terminal.Paint(terminal.Cell{Text: err.Error(), Color: terminal.Red}, o.colored))
	}
	fmt.Fprintf(w, "\nevery %s; q quits\n", o.interval)
}

func renderTop(w io.Writer, v inventory.TopView, colored bool) error {
	simulated := ""
	if v.Simulated {
		simulated = ", simulated"
	}
	fmt.Fprintf(w, "%s  driver %s, CUDA %s%s\n\n", v.At.Format("2006-01-02 15:04:05 MST"), cmp.Or(v.DriverVersion, "-"), cmp.Or(v.CUDAVersion, "-"), simulated)
	devices := [][]terminal.Cell{terminal.Row("GPU", "Model", "Memory", "Busy", "Temp", "Power", "Held", "Mode", "MPS", "State", "UUID")}
	tasks := [][]terminal.Cell{terminal.Row("GPU", "Task", "Alloc", "Memory", "Busy", "Processes", "Seat")}
	for _, d := range v.Devices {
		devices = append(devices, deviceCells(d))
		for _, t := range d.Tasks {
			tasks = append(tasks, taskCells(d, t, v.At))
		}
	}
	if err := terminal.Table(w, devices, colored); err != nil {
		return err
	}
	if len(tasks) == 1 {
		_, err := fmt.Fprintln(w, "\nNo task of the containerd driver holds a GPU.")
		return err
	}
	fmt.Fprintln(w)
	return terminal.Table(w, tasks, colored)
}

func deviceCells(d inventory.TopDevice) []terminal.Cell {
	model, mode := d.Model, string(d.Mode)
	if d.Parent != "" {
		model = d.Profile
	}
	if d.Sharing != gpu.SharingNone && d.Sharing != "" {
		mode += ", " + string(d.Sharing)
	}
	held := "-"
	if d.Group != "" {
		held = fmt.Sprintf("%d of %d", d.HeldInstances, d.Instances)
	}
	cells := terminal.Row(nameOf(d), model, amount(d.UsedMiB, d.MemoryMiB), measure(d.GPUPercent, "%"), measure(d.TemperatureC, "°C"), measure(d.PowerWatts, "W"), held, mode)
	return append(cells, mpsCell(d), stateCell(d), terminal.Cell{Text: d.UUID})
}

// nameOf is a GPU's index, or the beginning of a MIG instance's UUID.
func nameOf(d inventory.TopDevice) string {
	if d.Parent != "" {
		return d.UUID[:min(len(d.UUID), len("MIG-c6c0794a"))]
	}
	return fmt.Sprint(d.Index)
}

// mpsCell says how a device's MPS daemon is.
func mpsCell(d inventory.TopDevice) terminal.Cell {
	switch {
	case d.MPS == nil:
		return terminal.Cell{Text: "-"}
	case d.MPS.Fault != "":
		return terminal.Cell{Text: "fault", Color: terminal.Red}
	case !d.MPS.Ready:
		return terminal.Cell{Text: "not ready", Color: terminal.Yellow}
	case d.MPS.Starts > 1:
		return terminal.Cell{Text: fmt.Sprintf("ready, %d starts", d.MPS.Starts), Color: terminal.Green}
	}
	return terminal.Cell{Text: "ready", Color: terminal.Green}
}

// stateCell says whether a device takes work.
func stateCell(d inventory.TopDevice) terminal.Cell {
	switch {
	case len(d.Faults) > 0:
		return terminal.Cell{Text: d.Faults[0].Code, Color: terminal.Red}
	case d.Cordon != "":
		return terminal.Cell{Text: "cordoned", Color: terminal.Yellow}
	}
	return terminal.Cell{Text: "ok", Color: terminal.Green}
}

func taskCells(d inventory.TopDevice, t inventory.TopTask, at time.Time) []terminal.Cell {
	busy, seat := "-", terminal.Cell{Text: "-"}
	if t.Milli >= 0 {
		busy = fmt.Sprintf("%d%%", t.Milli/10)
	}
	if t.Seat != "" {
		seat.Text = fmt.Sprintf("%s for %s", t.Seat, at.Sub(t.SeatSince).Truncate(time.Second))
		switch t.Seat {
		case gpu.SeatResident:
			seat.Color = terminal.Green
		case gpu.SeatLost:
			seat.Color = terminal.Red
		default:
			seat.Color = terminal.Yellow
		}
	}
	share := t.ShareMiB
	if share == 0 {
		share = d.MemoryMiB
	}
	memory := terminal.Cell{Text: amount(t.UsedMiB, share)}
	if t.UsedMiB > share {
		memory.Color = terminal.Red
	}
	cells := terminal.Row(nameOf(d), t.Namespace+"/"+t.Job+"/"+t.Task, fmt.Sprintf("%.8s", t.AllocID))
	return append(cells, memory, terminal.Cell{Text: busy}, terminal.Cell{Text: measure(int64(t.Processes), "")}, seat)
}

// amount is memory in use of what there is: "3.5 of 16 GiB".
func amount(used, of int64) string {
	gib := func(mib int64) string {
		return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(mib)/1024), ".0")
	}
	if used < 0 {
		return "- of " + gib(of) + " GiB"
	}
	return gib(used) + " of " + gib(of) + " GiB"
}

// measure is a measurement with its unit, or a dash where there is none.
func measure(n int64, unit string) string {
	if n < 0 {
		return "-"
	}
	return fmt.Sprintf("%d%s", n, unit)
}
