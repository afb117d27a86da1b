// Package keeper is the agent's side of the keeper: it finds the pairs of keeper
// and nest that run on this node, starts one when there is none, and speaks to
// them as core.Launcher and core.Supervisor.
//
// It must not know containers; the keeper itself, in server/, must not even know this package.
// Start reading at Client, then pair.go.
package keeper
