// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// ErrNoJob is returned for a body that holds no job. Nomad itself tells the
// mistake.
var ErrNoJob = errors.New("the request holds no job")

// Query is what the URL of a request says about its job. Its namespace comes before that
// of the body, its region after it.
type Query struct {
	Namespace string
	Region    string
	// Devices are further names of device blocks for GPUs, as the operator's
	// resource_name has them.
	Devices []string
	// Registered is set for a job that Nomad gave: whose child it is, is for Nomad to say.
	Registered bool
}

// Job is a submitted job: the request's body and its content.
type Job struct {
	Namespace, ID, Region, Type string
	Priority                    int
	// Asks are the groups that need GPUs, in the job's order.
	Asks []Ask
	// Dispatched jobs are children that Nomad does not let be changed. Of one that was
	// submitted Nomad does not read it.
	Dispatched bool
	// Index is when the job was registered that a revision changes; 0: it is not one.
	Index uint64
	// periodic and parameterized jobs start nothing themselves, but children.
	periodic, parameterized bool

	envelope object // {"Job": …, "EnforceIndex": …, "Submission": …}
	job      object
	groups   []group
	family   family
	// preserved is what Nomad is to keep of the registered job.
	preserved preserved
}

// header is what the asks need of a job.
type header struct {
	ID, Region, Namespace, Type, NodePool *string
	ParentID                              *string
	Priority                              *int
	Datacenters                           []string
	Periodic, ParameterizedJob            json.RawMessage
	Stop, Dispatched                      *bool
	Meta                                  map[string]string
	Constraints                           []*Constraint
	Update                                *updateHeader
}

// group is a task group that is read but not yet changed.
type group struct {
	raw    json.RawMessage
	object object
	name   string
	tasks  []task
	header groupHeader
	// born groups have none of their allocs started with a child; they wait while that is so.
	born, waits bool
}

type groupHeader struct {
	Name  *string
	Count *int
	// MaxRunDuration is how long Nomad lets an allocation run, from 2.0.3 on.
	MaxRunDuration *gpu.TimeLimit
	Meta           map[string]string
	Constraints    []*Constraint
	Affinities     []*affinity
	Networks       []network
	Scaling        *struct{ Min, Max *int }
	Update         *updateHeader
	Volumes        map[string]*Volume
}

// count is how many allocs Nomad starts: without a count as many as the group is scaled to at
// least.
func (h *groupHeader) count() int {
	if h.Count == nil && h.Scaling != nil {
		return or(h.Scaling.Min, 1)
	}
	return or(h.Count, 1)
}

type updateHeader struct{ Canary *int }

type network struct {
	Mode          string
	ReservedPorts []json.RawMessage
}

// Read reads the body of a request to Nomad's job routes. The error is ErrNoJob,
// or a *Refusal that names the mistake in the job's GPU part.
func Read(body []byte, q Query) (*Job, error) {
	envelope, err := readEnvelope(body)
	if err != nil {
		return nil, err
	}
	j := &Job{envelope: envelope}
	if j.job, err = parseObject(envelope.get("Job")); err != nil {
		return nil, unreadable(err)
	}
	if len(j.job.members) == 0 {
		return nil, ErrNoJob
	}
	var h header
	if err := j.job.decodeAll(map[string]any{
		"ID": &h.ID, "ParentID": &h.ParentID, "Region": &h.Region, "Namespace": &h.Namespace, "Type": &h.Type, "NodePool": &h.NodePool,
		"Priority": &h.Priority, "Datacenters": &h.Datacenters, "Periodic": &h.Periodic,
		"ParameterizedJob": &h.ParameterizedJob, "Stop": &h.Stop, "Dispatched": &h.Dispatched, "Meta": &h.Meta, "Constraints": &h.Constraints,
		"Update": &h.Update,
	}); err != nil {
		return nil, unreadable(err)
	}
	if err := j.fill(h, q); err != nil {
		return nil, unreadable(err)
	}
	if err := j.readGroups(q.Devices); err != nil {
		return nil, unreadable(err)
	}
	if err := j.readFamily(q.Registered && or(h.ParentID, "") != ""); err != nil {
		return nil, err
	}
	return j, j.readAsks(h)
}

// readEnvelope reads the first JSON value of the body, as Nomad does.
func readEnvelope(body []byte) (object, error) {
	raw, err := newDecoder(body).ReadValue()
	if err != nil || raw.Kind() != '{' {
		return object{}, ErrNoJob
	}
	envelope, err := parseObject(raw)
	if err != nil {
		return object{}, unreadable(err)
	}
	return envelope, nil
}

// fill sets what identifies the job, with Nomad's rules and defaults.
func (j *Job) fill(h header, q Query) error {
	var namespace, region string
	if err := j.envelope.decodeAll(map[string]any{
		"Namespace": &namespace, "Region": &region, "JobModifyIndex": &j.Index,
		fieldPreserveCounts: &j.preserved.counts, fieldPreserveResources: &j.preserved.resources,
	}); err != nil {
		return err
	}
	j.ID = or(h.ID, "")
	j.Dispatched, j.periodic, j.parameterized = or(h.Dispatched, false), !isNull(h.Periodic), !isNull(h.ParameterizedJob)
	j.Type = or(h.Type, "service")
	j.Priority = or(h.Priority, 0)
	if j.Priority == 0 {
		j.Priority = 50
	}
	j.Namespace = firstOf(q.Namespace, namespace, or(h.Namespace, ""), "default")
	j.Region = firstOf(region, q.Region, or(h.Region, "")) // the body's first, unlike a namespace
	return nil
}

func (j *Job) readGroups(devices []string) error {
	raws, err := parseArray(j.job.get("TaskGroups"))
	if err != nil {
		return err
	}
	for _, raw := range raws {
		g, err := readGroup(raw, devices)
		if err != nil {
			return err
		}
		j.groups = append(j.groups, g)
	}
	return nil
}

func readGroup(raw []byte, devices []string) (group, error) {
	g := group{raw: raw}
	var err error
	if g.object, err = parseObject(raw); err != nil {
		return g, err
	}
	if err := g.object.decodeAll(map[string]any{
		"Name": &g.header.Name, "Count": &g.header.Count, "MaxRunDuration": &g.header.MaxRunDuration, "Meta": &g.header.Meta,
		"Constraints": &g.header.Constraints, "Affinities": &g.header.Affinities, "Networks": &g.header.Networks,
		"Scaling": &g.header.Scaling, "Update": &g.header.Update, "Volumes": &g.header.Volumes,
	}); err != nil {
		return g, err
	}
	g.name = or(g.header.Name, "")
	raws, err := parseArray(g.object.get("Tasks"))
	if err != nil {
		return g, err
	}
	for _, raw := range raws {
		t, err := readTask(raw, devices)
		if err != nil {
			return g, fmt.Errorf("group %q: %w", g.name, err)
		}
		g.tasks = append(g.tasks, t)
	}
	return g, g.checkConnect(devices)
}

// decodeAll reads several fields. Fields that are missing or null leave their
// value alone.
func (o object) decodeAll(fields map[string]any) error {
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := o.decode(name, fields[name]); err != nil {
			return err
		}
	}
	return nil
}

// unreadable refuses a job whose meaning is not certain: it might ask for GPUs
// in a place where it would not be seen.
func unreadable(err error) error {
	if refusal := (*Refusal)(nil); errors.As(err, &refusal) {
		return err
	}
	return malformed("the job cannot be read: " + err.Error())
}

func or[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

func firstOf(words ...string) string {
	for _, w := range words {
		if w != "" {
			return w
		}
	}
	return ""
}
