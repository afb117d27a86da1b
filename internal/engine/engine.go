// Package engine holds the verbs on sandboxes, containers and processes.
package engine

import "github.com/longshore/longshore/internal/core"

// Engine is the one execution engine of a node.
type Engine struct{}

// As returns the engine as one owner sees it.
func (e *Engine) As(owner core.Owner) *Client { return &Client{e: e, owner: owner} }

// All returns the unscoped view: every owner's objects. Only the control API
// holds it.
func (e *Engine) All() *Client { return &Client{e: e} }
