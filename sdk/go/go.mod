module github.com/garenne/garenne/sdk/go

go 1.19
