package weaken

// Beneath is that paths of which a workload owns a part are resolved below a
// trusted directory and through no link (internal/beneath).
const Beneath Defence = "beneath"

// NomadBinds is that a job may not bind a directory that its other mounts are made
// of.
const NomadBinds Defence = "nomad-binds"
