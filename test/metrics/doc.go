// Package metrics has a real Prometheus scrape a real agent with pods, by the jobs
// that docs/guide/metrics.md shows, and asks it what contrib/grafana's dashboard
// asks. It needs the programs prometheus and promtool, of Debian's package.
package metrics
