// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"strings"
	"sync"
	"time"

	nomad "github.com/hashicorp/nomad/api"
)

const (
	// gateMemory is how long Nomad's answer about a token is believed.
	gateMemory = 15 * time.Second
	// gateSize bounds how many answers are remembered.
	gateSize = 10_000
	// gateTimeout bounds one question.
	gateTimeout = 5 * time.Second
	// maxToken bounds a token, far above a workload identity's; maxNamespace is Nomad's own
	// bound on a namespace's name. Both are in bytes.
	maxToken     = 16 << 10
	maxNamespace = 128
)

// NomadGate is a Gate that asks Nomad with the caller's own token, and
// remembers the answer for a moment. It keeps no token, only a hash.
type NomadGate struct {
	client *nomad.Client
	now    func() time.Time
	mu     sync.Mutex
	known  map[gateKey]gateAnswer
}

type gateKey struct {
	token     [sha256.Size]byte
	question  string
	namespace string
}

type gateAnswer struct {
	err   error
	until time.Time
}

// NewNomadGate asks the Nomad of a configuration, whose own token is left out:
// a caller without one is anonymous, never the service itself.
func NewNomadGate(config nomad.Config) (*NomadGate, error) {
	config.SecretID = ""
	client, err := nomad.NewClient(&config)
	if err != nil {
		return nil, fmt.Errorf("make Nomad client for callers' tokens: %w", err)
	}
	return &NomadGate{client: client, now: time.Now, known: map[gateKey]gateAnswer{}}, nil
}

// MayRead needs node:read.
func (g *NomadGate) MayRead(ctx context.Context, token string) error {
	return g.ask(ctx, token, "read nodes", "", func(ctx context.Context) error {
		_, _, err := g.client.Nodes().List(queryAs(ctx, token, "", 1))
		return err
	})
}

// MayReadNamespace needs list-jobs. Nomad lists no jobs of a namespace that
// does not exist, and finds nothing wrong with it.
func (g *NomadGate) MayReadNamespace(ctx context.Context, token, namespace string) error {
	return g.ask(ctx, token, "list jobs", namespace, func(ctx context.Context) error {
		jobs, _, err := g.client.Jobs().List(queryAs(ctx, token, namespace, 1))
		if err == nil && len(jobs) == 0 && g.missing(ctx, token, namespace) {
			return fmt.Errorf("%w: %q", ErrNoNamespace, namespace)
		}
		return err
	})
}

// MaySubmit needs submit-job, or register-job. Nomad is asked to plan a job without any task
// to run, and where it says no, to register it in a way that it always refuses.
func (g *NomadGate) MaySubmit(ctx context.Context, token, namespace string) error {
	return g.ask(ctx, token, "submit jobs", namespace, func(ctx context.Context) error {
		options := (&nomad.WriteOptions{AuthToken: token, Namespace: namespace}).WithContext(ctx)
		_, _, err := g.client.Jobs().Plan(emptyJob(namespace), false, options)
		if denies(statusOf(err)) {
			err = g.mayRegister(options)
		}
		if status := statusOf(err); status != 0 && !denies(status) && g.missing(ctx, token, namespace) {
			return fmt.Errorf("%w: %q", ErrNoNamespace, namespace)
		}
		return err
	})
}

// mayRegister asks for a registration over a version of the job that no job has: Nomad looks
// at the token first and at the version next, and registers nothing. It is the second question
// because Nomad logs its refusal as an error. That refusal is a yes, and no error.
func (g *NomadGate) mayRegister(options *nomad.WriteOptions) error {
	_, _, err := g.client.Jobs().EnforceRegister(emptyJob(options.Namespace), math.MaxUint64, options)
	if err != nil && strings.Contains(err.Error(), nomad.RegisterEnforceIndexErrPrefix) {
		return nil
	}
	return err
}

// missing reports whether Nomad has no such namespace: its refusal to plan
// does not say so in its status.
func (g *NomadGate) missing(ctx context.Context, token, namespace string) bool {
	_, _, err := g.client.Namespaces().Info(namespace, queryAs(ctx, token, "", 0))
	return statusOf(err) == http.StatusNotFound
}

// statusOf is the status of Nomad's answer, 0 when there is none.
func statusOf(err error) int {
	var response nomad.UnexpectedResponseError
	if errors.As(err, &response) && response.HasStatusCode() {
		return response.StatusCode()
	}
	return 0
}

func denies(status int) bool {
	return status == http.StatusForbidden || status == http.StatusUnauthorized
}

func emptyJob(namespace string) *nomad.Job {
	job := nomad.NewBatchJob("nomad-gpu-permission", "nomad-gpu-permission", "", 50)
	job.Region = nil
	job.Namespace = &namespace
	job.Datacenters = []string{"*"}
	task := nomad.NewTask("none", "raw_exec").SetConfig("command", "true")
	return job.AddTaskGroup(nomad.NewTaskGroup("none", 0).AddTask(task))
}

func queryAs(ctx context.Context, token, namespace string, perPage int32) *nomad.QueryOptions {
	return (&nomad.QueryOptions{AuthToken: token, Namespace: namespace, PerPage: perPage, AllowStale: true}).WithContext(ctx)
}

// askable reports whether a token and a namespace are ones that Nomad could know. Of others
// no request can be made that Nomad answers, and its silence must not pass for a yes. Neither
// must its answer about all namespaces, which says that there is one.
func askable(token, namespace string) bool {
	control := strings.ContainsFunc(token, func(r rune) bool { return r < ' ' || r == 0x7f })
	return len(token) <= maxToken && !control && len(namespace) <= maxNamespace && namespace != nomad.AllNamespacesNamespace
}

func (g *NomadGate) ask(ctx context.Context, token, question, namespace string, do func(context.Context) error) error {
	if !askable(token, namespace) {
		return fmt.Errorf("%w: Nomad knows no token above %d bytes or with control characters, and no namespace above %d bytes or called *", ErrDenied, maxToken, maxNamespace)
	}
	key := gateKey{sha256.Sum256([]byte(token)), question, namespace}
	now := g.now()
	g.mu.Lock()
	answer, ok := g.known[key]
	g.mu.Unlock()
	if ok && now.Before(answer.until) {
		return answer.err
	}
	ctx, cancel := context.WithTimeout(ctx, gateTimeout)
	defer cancel()
	err := verdict(do(ctx), question, namespace)
	if err == nil || errors.Is(err, ErrDenied) {
		g.remember(key, gateAnswer{err, now.Add(gateMemory)})
	}
	return err
}

func (g *NomadGate) remember(key gateKey, answer gateAnswer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.known) >= gateSize {
		now := g.now()
		maps.DeleteFunc(g.known, func(_ gateKey, a gateAnswer) bool { return !now.Before(a.until) })
	}
	if len(g.known) >= gateSize {
		clear(g.known)
	}
	g.known[key] = answer
}

// verdict reads Nomad's answer: no is an answer, silence is none. The text of
// the error is not passed on, it may hold addresses.
func verdict(err error, question, namespace string) error {
	status := statusOf(err)
	switch {
	case err == nil || errors.Is(err, ErrNoNamespace):
		return err
	case status == 0:
		return ErrNoAnswer
	case denies(status):
		what := question
		if namespace != "" {
			what += fmt.Sprintf(" in namespace %q", namespace)
		}
		return fmt.Errorf("%w: the Nomad token may not %s; send one that may in the header X-Nomad-Token", ErrDenied, what)
	}
	return fmt.Errorf("%w as expected: status %d to the question whether the caller may %s", ErrNoAnswer, status, question)
}
