"""A process that uses the Spark session of another one, and may be killed without it."""

from __future__ import annotations

import os
import sys

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

Gateway = tuple[int, str]


def gateway_of(spark: SparkSession) -> Gateway:
    """What another process needs to use the JVM of a session."""
    parameters = spark.sparkContext._gateway.gateway_parameters
    return parameters.port, parameters.auth_token


def attached_session(gateway: Gateway) -> SparkSession:
    """A session of its own in the JVM of another process."""
    os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = map(str, gateway)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    opened = launch_gateway()
    running = opened.jvm.JavaSparkContext(opened.jvm.org.apache.spark.SparkContext.getOrCreate())
    conf = SparkConf(_jvm=opened.jvm, _jconf=running.getConf())
    return SparkSession(SparkContext(conf=conf, gateway=opened, jsc=running)).newSession()
