// Package house holds the repository to its own rules: who may import whom, that
// what is pure stays pure, and that versions and targets are what the documents
// say. It has tests only.
package house
