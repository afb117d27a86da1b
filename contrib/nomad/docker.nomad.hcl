# Written for docker's driver.
job "cache" {
  group "cache" {
    network {
      port "db" { to = 6379 }
    }

    task "redis" {
      driver = "docker"

      config {
        image = "redis:7"
        ports = ["db"]
        args  = ["redis-server", "--save", ""]

        labels {
          team = "platform"
        }

        ulimit {
          nofile = "4096:8192"
        }

        mount {
          type   = "tmpfs"
          target = "/data"
          tmpfs_options {
            size = 67108864
          }
        }
      }

      resources {
        cpu    = 200
        memory = 128
      }
    }
  }
}
