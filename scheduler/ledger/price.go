// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"math"
	"math/bits"
	"time"
)

// Price is what a GPU costs from a day on, in millionths of the currency.
type Price struct {
	// For is a GPU type ("H100"), a MIG profile ("1g.10gb"), or "*" for all others.
	For              string
	From             time.Time // zero: always
	GPUHour, GiBHour int64
}

// Any is the name of the price of types without one of their own.
const Any = "*"

// Prices is a price list.
type Prices []Price

// Cost is what an entry costs, in millionths of the currency: each part of its time at the
// price of that time.
func (p Prices) Cost(e *Entry) int64 {
	var sum int64
	for at := e.From; at.Before(e.To); {
		price, until := p.at(e, at)
		if until.IsZero() || until.After(e.To) {
			until = e.To
		}
		seconds := int64(until.Sub(at) / time.Second)
		sum += costOf(price.GPUHour*e.Milli, 1000, seconds) + costOf(price.GiBHour*e.MemoryMiB, 1024, seconds)
		at = until
	}
	return sum
}

// costOf is the cost of a time at a price per hour for a number of parts. The product of them
// needs more than 64 bits.
func costOf(hour, parts, seconds int64) int64 {
	high, low := bits.Mul64(uint64(hour), uint64(seconds))
	if high >= uint64(parts*3600) {
		return math.MaxInt64
	}
	cost, _ := bits.Div64(high, low, uint64(parts*3600))
	return int64(min(cost, math.MaxInt64))
}

// at is the price of an entry at a time, and when the next one comes; zero: none does.
func (p Prices) at(e *Entry, at time.Time) (price Price, until time.Time) {
	for _, name := range []string{e.Profile, e.Type, Any} {
		if name == "" || !p.names(name) {
			continue
		}
		for _, c := range p {
			switch {
			case c.For != name:
			case c.From.After(at):
				if until.IsZero() || c.From.Before(until) {
					until = c.From
				}
			case price.For == "" || c.From.After(price.From):
				price = c
			}
		}
		return price, until
	}
	return Price{}, time.Time{}
}

func (p Prices) names(name string) bool {
	for _, c := range p {
		if c.For == name {
			return true
		}
	}
	return false
}
