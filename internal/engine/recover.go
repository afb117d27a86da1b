package engine

import "context"

func (e *Engine) Recover(ctx context.Context) error { return nil }

func (e *Engine) reconcile(ctx context.Context) error { return nil }
