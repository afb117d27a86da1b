// Package disk tests the disk usage that a running node shows.
package disk
