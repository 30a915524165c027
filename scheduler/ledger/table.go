// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"encoding/csv"
	"io"
	"regexp"
	"strconv"
	"time"
)

// columns are the figures of a row, with the names that JSON has for them.
var columns = []struct {
	name  string
	value func(*Row) string
}{
	{"entries", func(r *Row) string { return strconv.Itoa(r.Entries) }},
	{"gpu_hours", func(r *Row) string { return number(r.GPUHours) }},
	{"gib_hours", func(r *Row) string { return number(r.GiBHours) }},
	{"asked_gpus", func(r *Row) string { return number(r.AskedGPUs) }},
	{"used_gpus_p50", func(r *Row) string { return of(r.UsedGPUs, func(u *Used) float64 { return u.P50 }) }},
	{"used_gpus_p95", func(r *Row) string { return of(r.UsedGPUs, func(u *Used) float64 { return u.P95 }) }},
	{"asked_gib", func(r *Row) string { return number(r.AskedGiB) }},
	{"used_gib_p50", func(r *Row) string { return of(r.UsedGiB, func(u *Used) float64 { return u.P50 }) }},
	{"used_gib_p95", func(r *Row) string { return of(r.UsedGiB, func(u *Used) float64 { return u.P95 }) }},
	{"used_gib_max", func(r *Row) string { return of(r.UsedGiB, func(u *Used) float64 { return u.Max }) }},
	{"cost", func(r *Row) string { return number(r.Cost) }},
}

func of(u *Used, value func(*Used) float64) string {
	if u == nil {
		return ""
	}
	return number(value(u))
}

func number(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// names are the columns that say what a row is about, by grouping.
var names = map[Grouping][]string{
	ByQueue: {"queue"}, ByNamespace: {"namespace"}, ByNode: {"node"}, ByType: {"type"},
	ByJob:   {"queue", "namespace", "job", "group", "task"},
	ByEntry: {"from", "to", "ended", "queue", "namespace", "job", "group", "task", "alloc", "node", "gpu", "type"},
}

// Named is what the row is about, in the order of the report's Names.
func (r *Row) named(by Grouping) []string {
	all := map[string]string{
		"queue": r.Queue, "namespace": r.Namespace, "job": r.Job, "group": r.Group, "task": r.Task, "alloc": r.Alloc,
		"node": r.Node, "gpu": r.GPU, "type": r.Type, "from": moment(r.From), "to": moment(r.To), "ended": r.Ended,
	}
	out := make([]string, 0, len(names[by]))
	for _, name := range names[by] {
		out = append(out, all[name])
	}
	return out
}

func moment(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// Table is the report with a heading, one row of cells per row.
func (r *Report) Table() [][]string {
	head := append([]string(nil), names[r.By]...)
	for _, c := range columns {
		head = append(head, c.name)
	}
	table := [][]string{head}
	for i := range r.Rows {
		cells := r.Rows[i].named(r.By)
		for _, c := range columns {
			cells = append(cells, c.value(&r.Rows[i]))
		}
		table = append(table, cells)
	}
	return table
}

// WriteCSV writes the rows, with a heading and without the total.
func (r *Report) WriteCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	for _, cells := range r.Table() {
		for i, cell := range cells {
			cells[i] = harmless(cell)
		}
		if err := out.Write(cells); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

// formula is where a spreadsheet may take what follows for one: at the beginning of a cell,
// and after what separates cells in some country or other.
var formula = regexp.MustCompile(`(^|[,;|"\t\r\n])(\s*)([=+@\-＝＋－＠])`)

// harmless keeps the name of a job from being a formula in a spreadsheet.
func harmless(cell string) string { return formula.ReplaceAllString(cell, "$1$2'$3") }
