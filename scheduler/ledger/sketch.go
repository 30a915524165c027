// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
)

// Sketch counts values in buckets whose width grows with the value, so that quantiles are
// off by 2 percent at most, and sketches of many tasks can be added. It has a few hundred
// buckets at most, however many values it counts.
type Sketch struct {
	buckets map[int]int64 // by logarithm; zeroBucket: zero
	count   int64
	sum     int64
	max     int64
}

// growth is by how much the bounds of a bucket differ: 1.04 makes its middle at most 2
// percent wrong.
const growth = 1.04

// zeroBucket counts zeros, which have no logarithm.
const zeroBucket = -1

var logGrowth = math.Log(growth)

func bucketOf(v int64) int {
	if v <= 0 {
		return zeroBucket
	}
	return int(math.Ceil(math.Log(float64(v)) / logGrowth))
}

// middle is the value that stands for all in a bucket.
func middle(bucket int) float64 {
	if bucket == zeroBucket {
		return 0
	}
	return 2 * math.Pow(growth, float64(bucket)) / (growth + 1)
}

// Add counts a value.
func (s *Sketch) Add(v int64) { s.addTo(bucketOf(v), 1, v) }

func (s *Sketch) addTo(bucket int, n, v int64) {
	if s.buckets == nil {
		s.buckets = map[int]int64{}
	}
	s.buckets[bucket] += n
	s.count += n
	s.sum += n * v
	s.max = max(s.max, v)
}

// Merge counts what another sketch counted.
func (s *Sketch) Merge(o *Sketch) {
	if s.buckets == nil {
		s.buckets = map[int]int64{}
	}
	for b, n := range o.buckets {
		s.buckets[b] += n
	}
	s.count, s.sum, s.max = s.count+o.count, s.sum+o.sum, max(s.max, o.max)
}

// IsZero reports whether nothing was counted; JSON leaves it out then.
func (s Sketch) IsZero() bool { return s.count == 0 }

// Count is how many values were counted.
func (s *Sketch) Count() int64 { return s.count }

// Max is the largest value.
func (s *Sketch) Max() int64 { return s.max }

// Mean is the mean of the values, 0 without any.
func (s *Sketch) Mean() float64 {
	if s.count == 0 {
		return 0
	}
	return float64(s.sum) / float64(s.count)
}

// Quantile is the value that a part q (0 to 1) of all values does not exceed.
func (s *Sketch) Quantile(q float64) float64 {
	rank := int64(math.Ceil(q * float64(s.count)))
	for _, b := range slices.Sorted(maps.Keys(s.buckets)) {
		if rank -= s.buckets[b]; rank <= 0 {
			return min(middle(b), float64(s.max))
		}
	}
	return float64(s.max)
}

// sketchText is how a sketch is stored: buckets and their counts in turn.
type sketchText struct {
	Buckets []int64 `json:"b"`
	Sum     int64   `json:"s"`
	Max     int64   `json:"m"`
}

// MarshalJSON writes the sketch.
func (s Sketch) MarshalJSON() ([]byte, error) {
	t := sketchText{Buckets: []int64{}, Sum: s.sum, Max: s.max}
	for _, b := range slices.Sorted(maps.Keys(s.buckets)) {
		t.Buckets = append(t.Buckets, int64(b), s.buckets[b])
	}
	return json.Marshal(t)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (s *Sketch) UnmarshalJSON(text []byte) error {
	var t sketchText
	if err := json.Unmarshal(text, &t); err != nil {
		return err
	}
	if len(t.Buckets)%2 != 0 {
		return fmt.Errorf("read sketch: %d numbers are not pairs of bucket and count", len(t.Buckets))
	}
	*s = Sketch{buckets: map[int]int64{}, sum: t.Sum, max: t.Max}
	for i := 0; i < len(t.Buckets); i += 2 {
		if t.Buckets[i] < zeroBucket || t.Buckets[i+1] < 0 {
			return fmt.Errorf("read sketch: bucket %d with count %d is not valid", t.Buckets[i], t.Buckets[i+1])
		}
		s.buckets[int(t.Buckets[i])] += t.Buckets[i+1]
		s.count += t.Buckets[i+1]
	}
	return nil
}
