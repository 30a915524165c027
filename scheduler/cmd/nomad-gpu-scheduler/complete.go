// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"context"
	"maps"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/command"
	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// predictors complete the values of options by the options' names.
type predictors = map[string]command.Predictor

// completed adds what the options of every online subcommand are completed with.
func completed(values predictors) predictors {
	all := predictors{"namespace": asked(namespaces)}
	maps.Copy(all, values)
	return all
}

func namespaces(client *api.Client, q *api.QueryOptions, _ string) (names []string, err error) {
	all, _, err := client.Namespaces().List(q)
	for _, n := range all {
		names = append(names, n.Name)
	}
	return names, err
}

// groupings complete what a report can be by.
func groupings() command.Predictor {
	words := make([]string, len(ledger.Groupings))
	for i, g := range ledger.Groupings {
		words[i] = string(g)
	}
	return command.OneOf(words...)
}

// The names of nodes, queues and jobs are those that the service knows.
var (
	nodeNamesSeen = seen(func(c *view.Cluster, _ string) (names []string) {
		for i := range c.Nodes {
			names = append(names, c.Nodes[i].Name)
		}
		return names
	})
	queueNames = seen(func(c *view.Cluster, _ string) (names []string) {
		for _, q := range c.Queues {
			names = append(names, q.Name)
		}
		return names
	})
	jobIDs = seen(jobsOf)
	// explain looks into one namespace, the default one if none is given.
	jobsToExplain = seen(func(c *view.Cluster, namespace string) []string { return jobsOf(c, cmp.Or(namespace, "default")) })
)

// jobsOf are the IDs of a namespace's jobs that have GPUs, want some or had; of all
// namespaces if none is given.
func jobsOf(c *view.Cluster, namespace string) (ids []string) {
	add := func(ns, id string) {
		if namespace == "" || ns == namespace {
			ids = append(ids, id)
		}
	}
	for i := range c.Nodes {
		for j := range c.Nodes[i].GPUs {
			for _, h := range c.Nodes[i].GPUs[j].Holders {
				add(h.Namespace, h.JobID)
			}
		}
	}
	for _, p := range c.Pending {
		add(p.Namespace, p.JobID)
	}
	for i := range c.Decisions {
		add(c.Decisions[i].Namespace, c.Decisions[i].JobID)
	}
	return ids
}

// seen completes names of the service's view of the cluster.
func seen(names func(c *view.Cluster, namespace string) []string) command.Predictor {
	return asked(func(client *api.Client, q *api.QueryOptions, namespace string) ([]string, error) {
		var c view.Cluster
		_, err := client.Raw().Query(clusterPath, &c, q)
		return names(&c, namespace), err
	})
}

// asked completes names that the service, or Nomad behind it, answers with. The address and
// token are those of the rest of the command line and the environment.
func asked(names func(client *api.Client, q *api.QueryOptions, namespace string) ([]string, error)) command.Predictor {
	return command.Names(func(ctx context.Context, given func(string) string) []string {
		c := connection{
			address: given("address"), namespace: given("namespace"), token: given("token"),
			caCert: given("ca-cert"), clientCert: given("client-cert"), clientKey: given("client-key"), serverName: given("tls-server-name"),
		}
		client, err := c.client()
		if err != nil {
			return nil
		}
		all, err := names(client, (&api.QueryOptions{}).WithContext(ctx), c.namespace)
		if err != nil {
			return nil
		}
		return all
	})
}
