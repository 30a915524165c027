// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func TestRedirectsTakeNoLoginAlong(t *testing.T) {
	for to, kept := range map[string]bool{
		"https://registry.example/v2/other":      true,
		"https://Registry.example:443/v2/other":  true,
		"https://registry.example:8443/v2/other": false,
		"http://registry.example/v2/other":       false,
		"http://registry.example:443/v2/other":   false,
		"https://cdn.registry.example/blob":      false,
		"https://other.example/blob":             false,
	} {
		first, err := http.NewRequest(http.MethodGet, "https://registry.example/v2/x", nil)
		must.NoError(t, err)
		next, err := http.NewRequest(http.MethodGet, to, nil)
		must.NoError(t, err)
		next.Header = http.Header{"Authorization": {"Basic x"}, "X-Key": {"operator's"}, "Referer": {"https://registry.example/v2/x"}, "Accept": {"*/*"}, "Range": {"bytes=5-"}}
		must.NoError(t, keepLogins(next, []*http.Request{first}))
		must.Eq(t, kept, next.Header.Get("Authorization") != "", must.Sprint(to))
		must.Eq(t, kept, next.Header.Get("X-Key") != "", must.Sprint(to))
		must.Eq(t, kept, next.Header.Get("Referer") != "", must.Sprint(to))
		must.Eq(t, "bytes=5-", next.Header.Get("Range"))
		next.Body = http.NoBody
		must.NoError(t, keepLogins(next, []*http.Request{first}))
		login, err := http.NewRequest(http.MethodPost, to, strings.NewReader("password=x"))
		must.NoError(t, err)
		must.Eq(t, !kept, errors.Is(keepLogins(login, []*http.Request{first}), ErrLoginRedirected), must.Sprint(to))
		must.Error(t, keepLogins(next, make([]*http.Request, maxRedirects)))
	}
}
