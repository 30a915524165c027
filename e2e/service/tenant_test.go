// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// attack is a request of a tenant whose queue is full.
type attack struct {
	path, body string
	token      string   // empty: none in a header
	header     []string // further ones
	status     int
	says       string
}

// fire sends an attack to the service.
func (r *replica) fire(ctx context.Context, t *testing.T, a attack) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL+a.path, strings.NewReader(a.body))
	if err != nil {
		t.Fatal(err)
	}
	if a.token != "" {
		request.Header.Set("X-Nomad-Token", a.token)
	}
	for i := 0; i+1 < len(a.header); i += 2 {
		request.Header.Set(a.header[i], a.header[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Error(err)
	}
	return response.StatusCode, string(text)
}

// registration is the body of one, with more beside the job.
func registration(t *testing.T, j *api.Job, more string) string {
	t.Helper()
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	return `{"Job":` + string(text) + more + `}`
}

// wants is a job of the team that asks for devices of a name.
func wants(id, device string, count uint64) job {
	return job{id: id, namespace: "team", devices: []*api.RequestedDevice{{Name: device, Count: &count}}}
}

// oddJobs are registrations of more than the queue can ever pay for, each in a way that Nomad
// understands, or that nothing could take back.
func oddJobs(t *testing.T) map[string]string {
	t.Helper()
	keeps := registration(t, job{id: "many", namespace: "team", meta: map[string]string{"gpu": "1G"}}.api(), `,"PreserveCounts":true`)
	compute := wants("compute", "nvidia/slice", 1).api()
	*compute.TaskGroups[0].Count = 2
	compute.TaskGroups[0].Tasks[0].Driver = "containerd"
	compute.TaskGroups[0].Tasks[0].Config = map[string]any{"image": "probe", "gpu": []map[string]any{{"compute": 1000}}}
	leftOut := job{id: "left-out", namespace: "team", meta: map[string]string{"gpu": "1G"}}.api()
	least := int64(20)
	leftOut.TaskGroups[0].Count, leftOut.TaskGroups[0].Scaling = nil, &api.ScalingPolicy{Min: &least, Max: &least}
	mesh := job{id: "mesh", namespace: "team"}.api()
	mesh.TaskGroups[0].Services = []*api.Service{{Name: "mesh", Connect: &api.ConsulConnect{SidecarService: &api.ConsulSidecarService{},
		SidecarTask: &api.SidecarTask{Resources: wants("x", "nvidia/slice", 8).api().TaskGroups[0].Tasks[0].Resources}}}}
	clock := job{id: "clock", namespace: "team", kind: "batch", meta: map[string]string{"gpu": "1G"}}.api()
	spec, cron := "* * * * * * *", api.PeriodicSpecCron
	clock.ParameterizedJob, clock.Periodic = &api.ParameterizedJobConfig{}, &api.PeriodicConfig{Spec: &spec, SpecType: &cron}
	tokens, plain, payload := wants("host-file", "nvidia/slice", 1).api(), job{id: "host-file", namespace: "team"}.api(), wants("host-file", "nvidia/slice", 1).api()
	for _, j := range []*api.Job{tokens, plain} {
		j.TaskGroups[0].Tasks[0].Identities = []*api.WorkloadIdentity{{Name: "web", Audience: []string{"x"}, File: true, Filepath: "local/../../../x"}}
	}
	sticky := true
	payload.TaskGroups[0].EphemeralDisk = &api.EphemeralDisk{Sticky: &sticky}
	payload.ParameterizedJob, payload.TaskGroups[0].Tasks[0].DispatchPayload = &api.ParameterizedJobConfig{Payload: "required"}, &api.DispatchPayloadConfig{File: "x"}
	twice := strings.Replace(registration(t, wants("twice", "nvidia/slice", 1).api(), ""), `"Devices":[`, `"devices":[],"Devices":[`, 1)
	return map[string]string{
		"keeps": keeps, "twice": twice, "compute": registration(t, compute, ""), "clock": registration(t, clock, ""),
		"left out": registration(t, leftOut, ""), "mesh": registration(t, mesh, ""),
		"tokens": registration(t, tokens, ""), "plain": registration(t, plain, ""), "payload": registration(t, payload, ""),
	}
}

// attacks are what has led past admission before, or was thought to: each asks for more than the
// queue of the team has left.
func attacks(t *testing.T, alice, child string, only map[string]string) map[string]attack {
	const at, scaling, dispatch, revert = "?namespace=team", "/v1/job/svc/scale", "/v1/job/par/dispatch", "/v1/job/svc/revert"
	const grows, back = `{"Count":5,"Target":{"Group":"g"}`, `{"JobID":"svc","JobVersion":0`
	const full, hidden, never = "quota", "does not let more of job", "may hold at most"
	odd := oddJobs(t)
	list := map[string]attack{
		"a scaling":                            {scaling + at, grows + `}`, alice, nil, 409, full},
		"a scaling that is to block":           {scaling + at + "&index=99999999&wait=10m", grows + `}`, alice, nil, 409, full},
		"a scaling and more":                   {scaling + at, grows + `} x`, alice, nil, 409, full},
		"a scaling with a field of reverts":    {scaling + at, grows + `,"JobVersion":"x"}`, alice, nil, 409, full},
		"a scaling that names a namespace":     {scaling + at, grows + `,"Namespace":"default"}`, alice, nil, 409, full},
		"a scaling by one who may only that":   {scaling + at, grows + `}`, only["scale-job"], nil, 409, hidden},
		"a dispatch":                           {dispatch + at, `{}`, alice, nil, 200, "DispatchedJobID"},
		"a dispatch that is to block":          {dispatch + at + "&index=99999999", `{}`, alice, nil, 200, "DispatchedJobID"},
		"a dispatch and more":                  {dispatch + at, `{}]`, alice, nil, 200, "DispatchedJobID"},
		"a dispatch to the namespace it names": {dispatch, `{"Namespace":"team"}`, alice, nil, 200, "DispatchedJobID"},
		"a dispatch with its token":            {dispatch + at, `{"AuthToken":"` + alice + `"}`, "", nil, 200, "DispatchedJobID"},
		"a dispatch to the region it names":    {dispatch + at, `{"Region":"global"}`, alice, nil, 200, "DispatchedJobID"},
		"a dispatch to another region":         {dispatch + at, `{"Region":"mars"}`, alice, nil, 500, "No path to region"},
		"a dispatch that drops a header":       {dispatch + at, `{"AuthToken":"` + alice + `"}`, only["register-job"], []string{"Connection", "X-Nomad-Token"}, 403, "Permission denied"},
		"a dispatch to another queue":          {dispatch + at, `{"Meta":{"gpu_queue":"other"}}`, alice, nil, 422, "gpu_queue"},
		"a dispatch of a payload":              {dispatch + "/payload" + at, `{"Namespace":"default"}`, alice, nil, 200, "DispatchedJobID"},
		"a dispatch by one who may only that":  {dispatch + at, `{}`, only["dispatch-job"], nil, 200, "DispatchedJobID"},
		"a dispatch by one who may not":        {dispatch + at, `{}`, only["scale-job"], nil, 403, "Permission denied"},
		"a dispatch of no job":                 {"/v1/job/none/dispatch" + at, `{}`, alice, nil, 500, "parameterized job not found"},
		"a revert":                             {revert + at, back + `}`, alice, nil, 409, full},
		"a revert that is to block":            {revert + at + "&index=99999999", back + `}`, alice, nil, 409, full},
		"a revert and more":                    {revert + at, back + `}]`, alice, nil, 409, full},
		"a revert in the namespace it names":   {revert, back + `,"Namespace":"team"}`, alice, nil, 409, full},
		"a revert with its token":              {revert + at, back + `,"AuthToken":"` + alice + `"}`, "", nil, 409, full},
		"a revert by one who may only that":    {revert + at, back + `}`, only["revert-job"], nil, 409, hidden},
		"more of a dispatched job":             {"/v1/job/" + url.PathEscape(child) + "/scale" + at, grows + `}`, alice, nil, 422, "what its children wait and start by"},
		"a force":                              {"/v1/job/never/periodic/force" + at, ``, alice, nil, 200, "EvalID"},
		"a force that says another namespace":  {"/v1/job/never/periodic/force" + at, `{"Namespace":"default"}`, alice, nil, 200, "EvalID"},
		"a force by one who may only that":     {"/v1/job/never/periodic/force" + at, ``, only["force-periodic-job"], nil, 200, "EvalID"},
		"a force by one who may not":           {"/v1/job/never/periodic/force" + at, ``, only["scale-job"], nil, 403, "Permission denied"},
		"a force of what is not periodic":      {"/v1/job/none/periodic/force" + at, ``, alice, nil, 500, "job not found"},
		"children by the clock":                {"/v1/jobs", odd["clock"], alice, nil, 422, "that is periodic"},
		"a count that is left out":             {"/v1/jobs", odd["left out"], alice, nil, 403, never},
		"devices of a sidecar":                 {"/v1/jobs", odd["mesh"], alice, nil, 422, "sidecar_task"},
		"counts that are kept":                 {"/v1/jobs", odd["keeps"], alice, nil, 403, never},
		"counts that are kept unseen":          {"/v1/jobs", odd["keeps"], only["register-job"], nil, 403, "read-job"},
		"compute beside a device block":        {"/v1/jobs", odd["compute"], alice, nil, 403, never},
		"a token in a file of the host":        {"/v1/jobs", odd["tokens"], alice, nil, 422, "identity: filepath"},
		"a token there, without a GPU":         {"/v1/jobs", odd["plain"], alice, nil, 422, "identity: filepath"},
		"a payload in a file of the host":      {"/v1/jobs", odd["payload"], alice, nil, 422, "dispatch_payload: file"},
		"devices twice":                        {"/v1/jobs", odd["twice"], alice, nil, 400, "twice"},
		"a job that stops, once more":          {"/v1/jobs", registration(t, slow(), ""), alice, nil, 200, "waits for quota"},
	}
	for _, name := range []string{"nvidia/", "/", "/slice", "//T4"} {
		list["devices named "+name] = attack{"/v1/jobs", registration(t, wants("named", name, 1).api(), ""), alice, nil, 400, fmt.Sprintf("%q", name)}
	}
	return list
}

// slow is a job whose task goes on for long after Nomad wants it to stop.
func slow() *api.Job {
	j := job{id: "slow", namespace: "team", meta: map[string]string{"gpu": "1G"}}.api()
	j.TaskGroups[0].Tasks[0].ShutdownDelay = time.Hour
	return j
}

// besieged is a cluster whose team has a full queue, with what attacks need: service svc with a
// version of three allocs, of which it has one, parameterized job par, periodic job never, job many of
// twenty allocs without GPUs, res, which was registered around the service, with devices and no allocs,
// and slow, which was stopped and whose alloc has not ended.
func besieged(ctx context.Context, t *testing.T, c *cluster.Cluster, r *replica, alice string) {
	t.Helper()
	r.API.SetSecretID(alice)
	admits(ctx, t, r)
	one := map[string]string{"gpu": "1G"}
	admitted(ctx, t, r, job{id: "svc", namespace: "team", kind: "batch", count: 3, meta: one})
	runsIn(ctx, t, c.API, "team", "svc", 3)
	admitted(ctx, t, r, job{id: "svc", namespace: "team", kind: "batch", count: 1, meta: one})
	runsIn(ctx, t, c.API, "team", "svc", 1)
	par := job{id: "par", namespace: "team", kind: "batch", meta: one}.api()
	par.ParameterizedJob = &api.ParameterizedJobConfig{Payload: "optional", MetaOptional: []string{"gpu_queue"}}
	many := job{id: "many", namespace: "team", count: 20}.api()
	many.TaskGroups[0].Constraints = []*api.Constraint{{LTarget: "${node.class}", Operand: "=", RTarget: "none"}}
	never := clock("never", "0 0 1 1 *", one)
	never.Namespace = par.Namespace
	for _, j := range []*api.Job{par, many, never} {
		if _, _, err := r.API.Jobs().Register(j, nil); err != nil {
			t.Fatal(err)
		}
	}
	around := wants("res", "nvidia/slice", 8).api()
	*around.TaskGroups[0].Count = 0
	if _, _, err := c.API.Jobs().Register(around, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.API.Jobs().Register(slow(), nil); err != nil {
		t.Fatal(err)
	}
	runsIn(ctx, t, c.API, "team", "slow", 1)
	if _, _, err := r.API.Jobs().Deregister("slow", false, (&api.WriteOptions{Namespace: "team"}).WithContext(ctx)); err != nil {
		t.Fatal(err)
	}
	admitted(ctx, t, r, job{id: "fill", namespace: "team", meta: map[string]string{"gpu": "10G"}})
	runsIn(ctx, t, c.API, "team", "fill", 1)
}

// dispatches sends so many at once, and returns the children that were made.
func (r *replica) dispatches(ctx context.Context, t *testing.T, alice string, atOnce int) (children []string) {
	t.Helper()
	type answer struct {
		status int
		said   string
	}
	answers := make(chan answer, atOnce)
	for range atOnce {
		go func() {
			status, said := r.fire(ctx, t, attack{path: "/v1/job/par/dispatch?namespace=team", body: `{}`, token: alice})
			answers <- answer{status, said}
		}()
	}
	for range atOnce {
		var made struct{ DispatchedJobID string }
		switch a := <-answers; {
		case a.status != http.StatusOK || json.Unmarshal([]byte(a.said), &made) != nil:
			t.Errorf("a dispatch: %d %s", a.status, a.said)
		default:
			children = append(children, made.DispatchedJobID)
		}
	}
	return children
}

// TestNoTenantGetsPastAFullQueue has a tenant try each way past admission that was found or
// thought of, on a Nomad with ACLs, in a queue that is full and may not borrow. Each is refused, or
// waits, and Nomad runs, and has registered, what it did before.
func TestNoTenantGetsPastAFullQueue(t *testing.T) {
	t.Parallel()
	ctx, c := startWith(t, 1, cluster.Options{ACLs: true})
	if _, err := c.API.Namespaces().Register(&api.Namespace{Name: "team"}, nil); err != nil {
		t.Fatal(err)
	}
	own := token(t, c.API, "nomad-gpu-scheduler", ownPolicy(t))
	alice := token(t, c.API, "alice", `namespace "default" { policy = "write" } namespace "team" { policy = "write" }`)
	only := map[string]string{}
	for _, right := range []string{"scale-job", "dispatch-job", "revert-job", "register-job", "force-periodic-job"} {
		only[right] = token(t, c.API, right, `namespace "team" { capabilities = ["`+right+`"] }`)
	}
	r := serveWith(ctx, t, c, launch{nomad: c.URL, token: own, config: `
queue "team" {
  gpus       = 1
  borrow     = false
  namespaces = ["team"]
}
queue "other" {
  gpus             = 1
  allow_namespaces = ["team"]
}`})
	besieged(ctx, t, c, r, alice)

	// Two slices of fourteen are left: of what is dispatched at once two run, and the others wait.
	children := r.dispatches(ctx, t, alice, 8)
	if len(children) != 8 {
		t.Fatalf("of eight dispatches at once %d passed", len(children))
	}
	q := (&api.QueryOptions{Namespace: "team"}).WithContext(ctx)
	until(ctx, t, "run two of them", time.Minute, func() (bool, string) {
		n := 0
		for _, id := range children {
			list, _, err := c.API.Jobs().Allocations(id, false, q)
			if err != nil {
				return false, err.Error()
			}
			n += len(list)
		}
		return n == 2, fmt.Sprint(n)
	})
	for name, a := range attacks(t, alice, children[0], only) {
		status, said := r.fire(ctx, t, a)
		if status != a.status || !strings.Contains(said, a.says) {
			t.Errorf("%s: %d %s, want %d %q", name, status, said, a.status, a.says)
		}
		if a.says == "does not let more of job" && strings.Contains(said, "GPU") {
			t.Errorf("%s learns %s", name, said)
		}
	}
	// Of what is kept devices are left out: there is nothing to refuse.
	kept := registration(t, job{id: "res", namespace: "team"}.api(), `,"PreserveResources":true`)
	if status, said := r.fire(ctx, t, attack{path: "/v1/jobs", body: kept, token: alice}); status != 200 {
		t.Errorf("resources that are kept: %d %s", status, said)
	}
	nothingMore(ctx, t, c)
}

// nothingMore wants the team to hold what its queue has, and its jobs to be as they were.
func nothingMore(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	t.Helper()
	q := (&api.QueryOptions{Namespace: "team", Params: map[string]string{"resources": "true"}}).WithContext(ctx)
	runsIn(ctx, t, c.API, "team", "res", 1)
	list, _, err := c.API.Allocations().List(q)
	if err != nil {
		t.Fatal(err)
	}
	held := 0
	for _, a := range list {
		if cluster.Terminal(a) || a.AllocatedResources == nil {
			continue
		}
		for _, task := range a.AllocatedResources.Tasks {
			for _, d := range task.Devices {
				held += len(d.DeviceIDs)
			}
		}
	}
	if held != 14 {
		t.Errorf("the team holds %d slices, want 14", held)
	}
	jobs, _, err := c.API.Jobs().List((&api.QueryOptions{Namespace: "team"}).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	registered := 0
	for _, stub := range jobs {
		want, listed := map[string]int{"svc": 1, "par": 0, "many": 20, "res": 1, "fill": 1, "never": 0, "slow": 1}[stub.ID]
		if stub.ParentID != "" {
			continue // what they hold is counted above
		}
		registered++
		j, _, err := c.API.Jobs().Info(stub.ID, (&api.QueryOptions{Namespace: "team"}).WithContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		if !listed || *j.TaskGroups[0].Count != want {
			t.Errorf("job %s has %d allocs, want %d", stub.ID, *j.TaskGroups[0].Count, want)
		}
		if d := j.TaskGroups[0].Tasks[0].Resources.Devices; (stub.ID == "res" || stub.ID == "many") && len(d) > 0 {
			t.Errorf("job %s has %v", stub.ID, d)
		}
	}
	if registered != 7 {
		t.Errorf("%d jobs are registered, want 7", registered)
	}
	doubleBooked(ctx, t, c.API)
}
