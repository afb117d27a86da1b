// Package attack is the attack suite: attempts to cross the node's boundary by a container's root,
// a host user, the author of a job, a registry, a network client, an operator of a hub and a holder
// of its join token. Each counts as refused, bounded or reached, and a missing one fails the run.
//
// To add an attempt, add it to the table of its actor (container_test.go, hostuser_root_test.go,
// …); one that a single defence stops names it in weak, and is made against the weakened build too,
// where it must reach. docs/security.md describes the trust in each actor. Start at suite_test.go.
package attack
