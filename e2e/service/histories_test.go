package service

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

const historyConfig = `
preemption {
  min_run_time     = "0s"
  hold_direct_jobs = true
  max_per_minute   = 600
  max_per_job      = 1000
  max_per_queue    = 1000
}
replica { lock_ttl = "10s" }
listen { request_timeout = "10s" }
queue "a" {
  gpus       = 2
  borrow     = false
  namespaces = ["a"]
}
queue "b" {
  gpus       = 2
  namespaces = ["b"]
}
`

// history drives the service beside a real Nomad through random events.
type history struct {
	*storm
	t        *testing.T
	rng      *rand.Rand
	bound    *boundWatch
	replicas []*replica // two, but while one is killed
	all      []*replica // those that were killed too
	frozen   *replica   // stopped with SIGSTOP until thaw
	thaw     time.Time
	closed   map[*cluster.Node]bool // takes no new work, or has no power
	dark     map[*cluster.Node]bool // has no power
	events   int
	slowest  time.Duration
	broken   int // gangs that were made to run in part
	// overfilled is how often Nomad was seen to start too much in queue a, of a job around the
	// service; children is how often one of the service's own was among that.
	overfilled, children int
}

func (h *history) say(format string, args ...any) {
	h.t.Logf("%s  "+format, append([]any{time.Now().Format("04:05")}, args...)...)
}

// add starts one more replica.
func (h *history) add(ctx context.Context) {
	h.t.Helper()
	r := serve(ctx, h.t, h.c, historyConfig)
	listens(ctx, h.t, r)
	h.replicas, h.all = append(h.replicas, r), append(h.all, r)
}

// leader is the replica that decides, and what it shows; nil: there is none.
func (h *history) leader(ctx context.Context) (*replica, *view.Cluster) {
	for _, r := range h.replicas {
		if r == h.frozen {
			continue
		}
		asked, cancel := context.WithTimeout(ctx, 5*time.Second)
		picture := &view.Cluster{}
		_, err := r.API.Raw().Query("/api/v1/gpu/cluster", picture, (&api.QueryOptions{}).WithContext(asked))
		cancel()
		if err == nil && picture.Leading {
			return r, picture
		}
	}
	return nil, nil
}

// notice has the bound count from when a replica decides.
func (h *history) notice(ctx context.Context) {
	if r, _ := h.leader(ctx); r != nil && !h.bound.decides.Load() {
		h.say("  %s decides", r.URL)
		h.bound.decides.Store(true)
	}
	if h.frozen != nil && time.Now().After(h.thaw) {
		h.unfreeze()
	}
}

func (h *history) unfreeze() {
	if h.frozen != nil {
		h.say("  continue %s", h.frozen.URL)
		_ = h.frozen.cmd.Process.Signal(syscall.SIGCONT)
		h.frozen = nil
	}
}

// through is a replica that answers.
func (h *history) through() *api.Client {
	list := slices.DeleteFunc(slices.Clone(h.replicas), func(r *replica) bool { return r == h.frozen })
	return list[h.rng.IntN(len(list))].API
}

// job is a random one, with one of the ways to be updated and moved; with around, it has
// devices of its author's own and is to go around the service.
func (h *history) job(about jobKey, around bool) *api.Job {
	rng := h.rng
	kind := "service" // Nomad does not let it change
	if number := about.id[len(about.id)-1]; number%2 == 1 {
		kind = "batch"
	}
	one := job{id: about.id, namespace: about.namespace, kind: kind, priority: 10 + 20*rng.IntN(5), count: 1 + rng.IntN(4)}
	one.meta = map[string]string{"version": strconv.Itoa(rng.IntN(3))}
	recurs := !strings.HasPrefix(about.id, "job")
	if around {
		n := []uint64{14, 7}[rng.IntN(2)]
		one.devices = []*api.RequestedDevice{{Name: "nvidia/slice", Count: &n}}
	} else {
		one.meta["gpu"] = []string{"1", "1", "8G", "4G", "0.5", "2G,0.25"}[rng.IntN(6)]
		if rng.IntN(4) == 0 {
			one.meta["gpu_gang"] = "true"
		}
		if !recurs && rng.IntN(5) == 0 {
			one.meta["gpu_fallback"], one.meta["gpu_fallback_after"] = "cpu", fmt.Sprintf("%ds", 10+rng.IntN(30))
		}
	}
	if one.kind == "batch" && rng.IntN(3) == 0 || recurs {
		one.seconds = 5 + rng.IntN(20)
	}
	var migrate *api.MigrateStrategy
	if one.kind == "service" && !recurs && one.meta["gpu_gang"] == "" && rng.IntN(3) > 0 {
		one.update, migrate = h.update(one.count), h.migrate()
	}
	j := one.api()
	g := j.TaskGroups[0]
	g.Migrate = migrate
	recurring(j)
	return restarted(j)
}

// restarted has what fails be started again soon, and always: a quiet time is short.
func restarted(j *api.Job) *api.Job {
	zero, delay, constant, always := 0, 5*time.Second, "constant", true
	j.TaskGroups[0].ReschedulePolicy = &api.ReschedulePolicy{Attempts: &zero, Interval: new(time.Duration), Delay: &delay, MaxDelay: new(time.Duration), DelayFunction: &constant, Unlimited: &always}
	return j
}

func (h *history) update(count int) *api.UpdateStrategy {
	u := canaries([]int{0, 1, count}[h.rng.IntN(3)])
	deadline, progress, parallel, revert, promote := 20*time.Second, 40*time.Second, h.rng.IntN(3), h.rng.IntN(2) == 0, *u.Canary > 0 && h.rng.IntN(3) == 0
	u.HealthyDeadline, u.ProgressDeadline, u.MaxParallel, u.AutoRevert, u.AutoPromote = &deadline, &progress, &parallel, &revert, &promote
	return u
}

func (h *history) migrate() *api.MigrateStrategy {
	parallel, healthy, deadline, check := h.rng.IntN(3), 100*time.Millisecond, 20*time.Second, "task_states"
	return &api.MigrateStrategy{MaxParallel: &parallel, MinHealthyTime: &healthy, HealthyDeadline: &deadline, HealthCheck: &check}
}

// happenings are what may happen, each as often as it says.
var happenings = []struct {
	name  string
	often int
	do    func(h *history, ctx context.Context)
}{
	{"register", 20, func(h *history, ctx context.Context) { h.request(ctx, h.through(), "register", h.any("")) }},
	{"register around", 3, func(h *history, ctx context.Context) {
		about := h.any("job")
		h.say("register %s around the service", about)
		h.told(h.send(ctx, h.rng, h.c.API, "register", about, func() *api.Job { return h.described(h.job(about, true)) }))
	}},
	{"stop", 2, func(h *history, ctx context.Context) { h.request(ctx, h.either(), "stop", h.known("")) }},
	{"purge", 1, (*history).purge},
	{"revert", 2, func(h *history, ctx context.Context) { h.request(ctx, h.either(), "revert", h.known("job")) }},
	{"scale", 3, func(h *history, ctx context.Context) { h.request(ctx, h.either(), "scale", h.known("job")) }},
	{"promote", 3, func(h *history, ctx context.Context) { h.request(ctx, h.either(), "promote", h.known("job")) }},
	{"fail", 2, func(h *history, ctx context.Context) { h.request(ctx, h.either(), "fail", h.known("job")) }},
	{"stop alloc", 2, func(h *history, ctx context.Context) { h.request(ctx, h.either(), "stop alloc", h.known("")) }},
	{"evaluate", 1, func(h *history, ctx context.Context) { h.request(ctx, h.either(), "evaluate", h.known("job")) }},
	{"force", 2, func(h *history, ctx context.Context) { h.request(ctx, h.either(), "force", h.known("periodic")) }},
	{"dispatch", 2, func(h *history, ctx context.Context) {
		about, to := h.known("parameterized"), h.through()
		if about.namespace != "a" && h.rng.IntN(3) == 0 { // nothing brings a queue back that these fill
			to = h.c.API
		}
		h.request(ctx, to, "dispatch", about)
	}},
	{"kill tasks", 2, (*history).killTasks},
	{"kill the leader", 1, (*history).killLeader},
	{"freeze the leader", 1, (*history).freezeLeader},
	{"kill all replicas", 1, (*history).killAll},
	{"close a node", 2, func(h *history, ctx context.Context) {
		n := h.node()
		h.say("%s takes no new work", n.Name)
		_, err := h.c.API.Nodes().ToggleEligibility(n.ID, false, nil)
		h.told(err)
		h.closed[n] = true
	}},
	{"drain a node", 1, func(h *history, ctx context.Context) {
		n := h.node()
		h.say("drain %s", n.Name)
		_, err := h.c.API.Nodes().UpdateDrain(n.ID, &api.DrainSpec{Deadline: 20 * time.Second}, false, nil)
		h.told(err)
		h.closed[n] = true
	}},
	{"kill a client", 1, func(h *history, ctx context.Context) {
		n := h.node()
		if h.dark[n] {
			return
		}
		h.say("kill the client of %s, and start it again", n.Name)
		if err := n.KillClient(); err != nil {
			h.t.Fatal(err)
		}
		if err := n.StartClient(ctx); err != nil {
			h.t.Fatal(err)
		}
	}},
	{"power off", 1, func(h *history, ctx context.Context) {
		n := h.node()
		if h.dark[n] {
			return
		}
		h.say("pull the plug of %s", n.Name)
		if err := n.PowerOff(); err != nil {
			h.t.Fatal(err)
		}
		h.dark[n] = true
		h.bound.off.Store(n.ID, true)
	}},
	{"lose Variables", 2, (*history).loseVariables},
}

// any names a job: of one of the kinds, or of any.
func (h *history) any(kind string) jobKey {
	if kind == "" {
		kind = []string{"job", "job", "job", "job", "job", "job", "periodic", "parameterized"}[h.rng.IntN(8)]
	}
	most := 5
	if kind != "job" {
		most = 2
	}
	return jobKey{[]string{"a", "b", "c"}[h.rng.IntN(3)], fmt.Sprintf("%s-%d", kind, h.rng.IntN(most))}
}

// known names one of the jobs that were registered and not stopped, mostly.
func (h *history) known(kind string) jobKey {
	var list []jobKey
	for key, last := range h.alive {
		if last.alive && strings.HasPrefix(key.id, kind) {
			list = append(list, key)
		}
	}
	if len(list) == 0 || h.rng.IntN(10) == 0 {
		return h.any(kind)
	}
	slices.SortFunc(list, func(x, y jobKey) int { return strings.Compare(x.String(), y.String()) })
	return list[h.rng.IntN(len(list))]
}

func (h *history) node() *cluster.Node { return h.c.Nodes[h.rng.IntN(len(h.c.Nodes))] }

// either is the service or, one time in three, Nomad itself.
func (h *history) either() *api.Client {
	if h.rng.IntN(3) == 0 {
		return h.c.API
	}
	return h.through()
}

func (h *history) request(ctx context.Context, to *api.Client, route string, about jobKey) {
	around := ""
	if to == h.c.API {
		around = " around the service"
	}
	h.say("%s %s%s", route, about, around)
	h.told(h.send(ctx, h.rng, to, route, about, func() *api.Job { return h.described(h.job(about, false)) }))
}

func (h *history) told(err error) {
	if err != nil {
		h.say("  %s", err)
	}
}

func (h *history) described(j *api.Job) *api.Job {
	g := j.TaskGroups[0]
	text := fmt.Sprintf("%s, priority %d, %d of %v%v", *j.Type, *j.Priority, *g.Count, g.Tasks[0].Meta, g.Tasks[0].Config["args"])
	if u := g.Update; u != nil {
		text += fmt.Sprintf(", update %d canaries, %d at once, revert %v, promote %v", *u.Canary, *u.MaxParallel, *u.AutoRevert, *u.AutoPromote)
	}
	if g.Migrate != nil {
		text += fmt.Sprintf(", migrate %d at once", *g.Migrate.MaxParallel)
	}
	for _, d := range g.Tasks[0].Resources.Devices {
		text += fmt.Sprintf(", %d %s", *d.Count, d.Name)
	}
	h.say("  %s", text)
	return j
}

// purge has Nomad forget a job once it has stopped. Nomad 1.11 panics where a job is purged
// while a plan for it is under way, so this waits until nothing of it is evaluated.
func (h *history) purge(ctx context.Context) {
	about := h.known("job")
	w, q := (&api.WriteOptions{Namespace: about.namespace}).WithContext(ctx), (&api.QueryOptions{Namespace: about.namespace}).WithContext(ctx)
	_, meta, err := h.c.API.Jobs().Deregister(about.id, false, w)
	if h.note(about, false, meta, err); err != nil {
		return
	}
	for range 40 {
		busy := len(allocs(ctx, h.t, h.c.API, about.namespace, about.id)) > 0
		evals, _, err := h.c.API.Jobs().Evaluations(about.id, q)
		if err != nil {
			return
		}
		for _, e := range evals {
			busy = busy || e.Status == "pending" || e.Status == "blocked"
		}
		if !busy {
			h.say("purge %s", about)
			_, _, err := h.c.API.Jobs().Deregister(about.id, true, w)
			h.told(err)
			h.mu.Lock()
			delete(h.alive, about)
			h.mu.Unlock()
			return
		}
		time.Sleep(250 * time.Millisecond)
	}
	h.say("stop %s", about)
}

// killTasks kills what runs in up to three allocs: they fail, and are started again.
func (h *history) killTasks(ctx context.Context) {
	list, _, err := h.c.API.Allocations().List((&api.QueryOptions{Namespace: "*"}).WithContext(ctx))
	if err != nil {
		return
	}
	list = slices.DeleteFunc(list, func(a *api.AllocationListStub) bool { return a.ClientStatus != "running" || a.DesiredStatus != "run" })
	for range 1 + h.rng.IntN(3) {
		if len(list) > 0 {
			a := list[h.rng.IntN(len(list))]
			h.say("kill the task of %.8s of %s/%s", a.ID, a.Namespace, a.JobID)
			short, cancel := context.WithTimeout(ctx, 10*time.Second)
			h.told(h.c.API.Allocations().Signal(&api.Allocation{ID: a.ID, NodeID: a.NodeID, Namespace: a.Namespace}, (&api.QueryOptions{Namespace: a.Namespace}).WithContext(short), "sleep", "SIGKILL"))
			cancel()
		}
	}
}

func (h *history) killLeader(ctx context.Context) {
	r, _ := h.leader(ctx)
	if r == nil {
		return
	}
	h.bound.decides.Store(false)
	h.unfreeze()
	h.say("kill %s, which leads", r.URL)
	r.kill(syscall.SIGKILL)
	h.replicas = slices.DeleteFunc(h.replicas, func(x *replica) bool { return x == r })
	h.add(ctx)
}

// freezeLeader stops the replica that leads for up to 40 seconds, in which the other takes
// over or not: for the one that is continued it is as if the clock had jumped.
func (h *history) freezeLeader(ctx context.Context) {
	r, _ := h.leader(ctx)
	if r == nil || h.frozen != nil {
		return
	}
	h.bound.decides.Store(false)
	took := time.Duration(3+h.rng.IntN(38)) * time.Second
	h.say("stop %s, which leads, for %s", r.URL, took)
	_ = r.cmd.Process.Signal(syscall.SIGSTOP)
	h.frozen, h.thaw = r, time.Now().Add(took)
}

// killAll leaves Nomad alone for a while.
func (h *history) killAll(ctx context.Context) {
	h.bound.decides.Store(false)
	h.unfreeze()
	h.say("kill both replicas")
	for _, r := range h.replicas {
		r.kill(syscall.SIGKILL)
	}
	h.replicas = nil
	for range 1 + h.rng.IntN(3) {
		about := h.any("job")
		h.say("register %s around the service", about)
		h.told(h.send(ctx, h.rng, h.c.API, "register", about, func() *api.Job { return h.described(h.job(about, true)) }))
		time.Sleep(time.Duration(h.rng.IntN(6)) * time.Second)
	}
	h.add(ctx)
	h.add(ctx)
}

func (h *history) loseVariables(ctx context.Context) {
	list, _, err := h.c.API.Variables().PrefixList("nomad-gpu/decisions", (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return
	}
	lost := 0
	for _, v := range list {
		if h.rng.IntN(2) == 0 {
			lost++
			_, err := h.c.API.Variables().Delete(v.Path, (&api.WriteOptions{}).WithContext(ctx))
			h.told(err)
		}
	}
	h.say("lose %d of %d records of decisions", lost, len(list))
}

// event has one thing happen.
func (h *history) event(ctx context.Context) {
	sum := 0
	for _, x := range happenings {
		sum += x.often
	}
	at := h.rng.IntN(sum)
	for _, x := range happenings {
		if at -= x.often; at < 0 {
			h.events++
			x.do(h, ctx)
			return
		}
	}
}

// calmDown ends what was done to nodes and replicas.
func (h *history) calmDown(ctx context.Context) {
	h.unfreeze()
	for _, n := range h.c.Nodes {
		if h.dark[n] {
			h.say("%s has power again", n.Name)
			if err := n.PowerOn(ctx); err != nil {
				h.t.Fatal(err)
			}
			h.bound.off.Delete(n.ID)
			delete(h.dark, n)
		}
		if h.closed[n] {
			h.say("%s takes work again", n.Name)
			if _, err := h.c.API.Nodes().UpdateDrain(n.ID, nil, true, nil); err != nil {
				h.t.Fatal(err)
			}
			if _, err := h.c.API.Nodes().ToggleEligibility(n.ID, true, nil); err != nil {
				h.t.Fatal(err)
			}
			delete(h.closed, n)
		}
	}
}

// TestRandomHistoriesOnNomad drives a real Nomad and two replicas of the service through
// random submissions, updates, promotions, deployments that fail, reverts, scales, stops,
// purges, kills of tasks, of clients, of machines and of the leading replica, leaders that
// stand still, times without any, nodes that close and drain, dispatches, forced children,
// lost Variables and jobs that go around the service, as TestRandomHistories in
// scheduler/reconcile does with a model of Nomad. After each quiet time all is as
// history.wrong has it, and nothing is started or stopped any more. No queue with
// borrow = false is above its bound for long.
func TestRandomHistoriesOnNomad(t *testing.T) {
	if os.Getenv("NOMAD_GPU_LONG") == "" {
		t.Skip("takes ten minutes: make test-histories")
	}
	ctx, c := start(t, 3)
	for _, name := range []string{"a", "b", "c"} {
		if _, err := c.API.Namespaces().Register(&api.Namespace{Name: name}, nil); err != nil {
			t.Fatal(err)
		}
	}
	seed := seed(t)
	h := &history{storm: newStorm(c), t: t, rng: rand.New(rand.NewPCG(seed, 5)), bound: &boundWatch{namespace: "a", bound: bound}, closed: map[*cluster.Node]bool{}, dark: map[*cluster.Node]bool{}}
	h.add(ctx)
	h.add(ctx)
	admits(ctx, t, h.replicas[0])
	stop := h.bound.start(ctx, c)
	h.bear(ctx)
	for range 25 { // more than there is room for
		h.request(ctx, h.through(), "register", h.any(""))
	}
	began := time.Now()
	for round := 1; round <= 3 || time.Since(began) < 5*time.Minute; round++ {
		for range 15 + h.rng.IntN(10) {
			h.notice(ctx)
			h.event(ctx)
			time.Sleep(time.Duration(h.rng.IntN(1500)) * time.Millisecond)
		}
		h.calmDown(ctx)
		if h.roomy(ctx, round); t.Failed() {
			break
		}
		h.say("%d events until quiet time %d", h.events, round)
		if h.quiet(ctx); t.Failed() {
			break
		}
	}
	if !t.Failed() {
		h.still(ctx)
		h.nothingIsLost(ctx, t)
	}
	stop()
	h.said(t)
	h.bound.tell(t)
	if h.overfilled == 0 && !t.Failed() {
		t.Error("the queue of namespace a was never above its bound by what Nomad started: nothing had to be brought back")
	}
	h.sum(seed)
}

// sum tells what came to pass.
func (h *history) sum(seed uint64) {
	list, _, err := h.c.API.Allocations().List(&api.QueryOptions{Namespace: "*"})
	h.told(err)
	did := ""
	for _, action := range []string{"evict", "reclaim", "hold", "let_go", "fallback"} {
		n := 0
		for _, r := range h.all {
			n += strings.Count(r.said(h.t), fmt.Sprintf(`"action":%q`, action))
		}
		did += fmt.Sprintf(", %d %s", n, action)
	}
	h.t.Logf("seed %d: %d events, %d replicas, %d gangs broken, %d times too much in queue a (%d with a child), %d allocs%s; the slowest quiet time took %s", seed, h.events, len(h.all), h.broken, h.overfilled, h.children, len(list), did, h.slowest.Round(time.Second))
}
