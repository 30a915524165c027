// SPDX-License-Identifier: MPL-2.0

package taskconfig

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/hclform"
)

// Mistake is one thing that is wrong with a configuration.
type Mistake = hclform.Mistake

// Mistakes collects all that is wrong, so that an author can mend it in one go. A
// job's file tells its options in no order by the time that they arrive here;
// mistakes stand in that of the reference, the same in every run.
type Mistakes struct{ all []Mistake }

// Add notes a mistake in the value of a key.
func (m *Mistakes) Add(key, format string, args ...any) {
	m.all = append(m.all, Mistake{Key: key, Problem: fmt.Sprintf(format, args...)})
}

// AddErr notes an error about the value of a key; nil is none. Mistakes collected
// elsewhere keep their own keys.
func (m *Mistakes) AddErr(key string, err error) {
	var several *Mistakes
	var values hclform.Mistakes
	switch {
	case err == nil:
	case errors.As(err, &values):
		m.all = append(m.all, values...)
	case errors.As(err, &several):
		m.all = append(m.all, several.all...)
	default:
		m.Add(key, "%v", err)
	}
}

// optionOf is the option of the first level that a mistake's key belongs to.
func optionOf(m Mistake) string {
	if i := strings.IndexAny(m.Key, ".["); i >= 0 {
		return m.Key[:i]
	}
	return m.Key
}

// All are the mistakes.
func (m *Mistakes) All() []Mistake { return m.all }

// Err is nil where nothing is wrong.
func (m *Mistakes) Err() error {
	if len(m.all) == 0 {
		return nil
	}
	return m
}

// ErrIn is Err, with the mistakes in the order that the options have in a
// configuration's Go form, which is that of the reference. Others come behind them,
// and those of one option stay as they were found.
func (m *Mistakes) ErrIn(config any) error {
	form := reflect.TypeOf(config)
	place := func(mistake Mistake) int {
		for i := range form.NumField() {
			if form.Field(i).Tag.Get("codec") == optionOf(mistake) {
				return i
			}
		}
		return form.NumField()
	}
	slices.SortStableFunc(m.all, func(a, b Mistake) int { return place(a) - place(b) })
	return m.Err()
}

func (m *Mistakes) Error() string {
	if len(m.all) == 1 {
		return m.all[0].Error()
	}
	text := fmt.Sprintf("%d mistakes:", len(m.all))
	for i, mistake := range m.all {
		text += fmt.Sprintf(" (%d) %s.", i+1, strings.TrimSuffix(mistake.Error(), "."))
	}
	return text
}
