// SPDX-License-Identifier: MPL-2.0

package runtime

import "context"

// tenant is for whom an image is got.
type tenant struct{ namespace, job string }

type tenantKey struct{}

// WithTenant says for whom an image is got under the context: namespaces and jobs share what
// a node can do only a few times at once.
func WithTenant(ctx context.Context, namespace, job string) context.Context {
	return context.WithValue(ctx, tenantKey{}, tenant{namespace, job})
}

// sameTenant is ctx for the tenant of another context.
func sameTenant(ctx, other context.Context) context.Context {
	return context.WithValue(ctx, tenantKey{}, tenantOf(other))
}

func tenantOf(ctx context.Context) tenant {
	of, _ := ctx.Value(tenantKey{}).(tenant)
	return of
}
