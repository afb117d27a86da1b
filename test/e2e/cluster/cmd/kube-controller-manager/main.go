// Command kube-controller-manager is Kubernetes' kube-controller-manager as its own main has it.
package main

import (
	"os"
	_ "time/tzdata" // for the time zones of CronJobs

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // the log format
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of its clients
	_ "k8s.io/component-base/metrics/prometheus/version"  // its version as a metric
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

func main() {
	os.Exit(cli.Run(app.NewControllerManagerCommand()))
}
