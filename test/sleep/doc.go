// Package sleep has tests of containers that sleep and wake on a whole node.
package sleep
