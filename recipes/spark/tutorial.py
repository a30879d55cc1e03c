"""From PySpark's quickstart: a data frame, grouped and averaged."""

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
rows = [["red", "banana", 1], ["blue", "grape", 2], ["red", "carrot", 3]]
frame = spark.createDataFrame(rows, schema=["color", "fruit", "v1"])
frame.groupby("color").avg("v1").show()
spark.stop()
