// SPDX-License-Identifier: MPL-2.0

// Package splitmix is the SplitMix64 generator: small, fast, and the same on every
// machine and in every release, which the standard library's generators do not
// promise. Draws and hashes that decide where work goes are made with it.
package splitmix

// Source is a generator by its state; any state is a good seed.
type Source uint64

// Next returns 64 random bits.
func (r *Source) Next() uint64 {
	*r += 0x9e3779b97f4a7c15
	z := uint64(*r)
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	return z ^ (z >> 31)
}

// Mix folds a value into the state, to use the generator as a hash.
func (r *Source) Mix(v uint64) {
	*r ^= Source(v)
	*r = Source(r.Next())
}

// Float returns a number from 0 up to 1.
func (r *Source) Float() float64 { return float64(r.Next()>>11) / (1 << 53) }

// Shuffled returns 0 to n-1 in random order.
func (r *Source) Shuffled(n int) []int {
	out := make([]int, n)
	for i := range out {
		j := int(r.Next() % uint64(i+1))
		out[i], out[j] = out[j], i
	}
	return out
}
